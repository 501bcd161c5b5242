"""Ends an image's build if the PyTorch in it does not fit: `check_torch.py VARIANT CUDA`.

CUDA is "any", "none" (a build for CPUs), or what the version must begin with. The variant v100 needs code for compute
capability 7.0, which builds for newer CUDA do not have.
"""

from __future__ import annotations

import sys

import torch

variant, wanted = sys.argv[1:]
cuda = torch.version.cuda
print(f"PyTorch {torch.__version__}, CUDA {cuda}, code for {' '.join(torch.cuda.get_arch_list()) or 'no GPU'}")
fits = cuda is None if wanted == "none" else cuda is not None and (wanted == "any" or cuda.startswith(wanted))
if not fits:
    sys.exit(f"this PyTorch is for CUDA {cuda}, and CUDA={wanted} was asked for; choose another TORCH or TORCH_INDEX")
if variant == "v100" and wanted != "none" and "sm_70" not in torch.cuda.get_arch_list():
    sys.exit("this PyTorch has no code for a V100 (sm_70); set TORCH_INDEX to PyTorch's wheels for CUDA 12.6")
