"""The border to PyTorch: lists of ids in, ids and int16 audio out."""
