"""The messages of the gRPC servers, as protobuf classes that are made at import: no compiler, no generated code.

`FIELDS` has what is used of two public interfaces: the inference protocol of KServe (version 2), which Triton speaks,
and the runtime of CosyVoice. Unknown fields are skipped, so what is not listed does no harm.
"""

from __future__ import annotations

from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

_TYPES = {"string": 9, "bytes": 12, "bool": 8, "int64": 3}
FIELDS: dict[str, dict[str, tuple[int, str]]] = {
    "inference.ModelReadyRequest": {"name": (1, "string"), "version": (2, "string")},
    "inference.ModelReadyResponse": {"ready": (1, "bool")},
    "inference.InferTensor": {"name": (1, "string"), "datatype": (2, "string"), "shape": (3, "repeated int64")},
    "inference.ModelInferRequest": {
        "model_name": (1, "string"),
        "id": (3, "string"),
        "inputs": (5, "repeated inference.InferTensor"),
        "raw_input_contents": (7, "repeated bytes"),
    },
    "inference.ModelInferResponse": {
        "id": (3, "string"),
        "outputs": (5, "repeated inference.InferTensor"),
        "raw_output_contents": (6, "repeated bytes"),
    },
    "inference.ModelStreamInferResponse": {
        "error_message": (1, "string"),
        "infer_response": (2, "inference.ModelInferResponse"),
    },
    "cosyvoice.SftRequest": {"spk_id": (1, "string"), "tts_text": (2, "string")},
    "cosyvoice.ZeroShotRequest": {
        "tts_text": (1, "string"),
        "prompt_text": (2, "string"),
        "prompt_audio": (3, "bytes"),
    },
    "cosyvoice.CrossLingualRequest": {"tts_text": (1, "string"), "prompt_audio": (2, "bytes")},
    "cosyvoice.Request": {
        "sft_request": (1, "cosyvoice.SftRequest"),
        "zero_shot_request": (2, "cosyvoice.ZeroShotRequest"),
        "cross_lingual_request": (3, "cosyvoice.CrossLingualRequest"),
    },
    "cosyvoice.Response": {"tts_audio": (1, "bytes")},
}
"""By full name, the fields of each message: number and type. On the wire a choice (`oneof`) is as its fields are."""


def _classes() -> dict[str, Any]:
    pool = descriptor_pool.DescriptorPool()
    for package in ("inference", "cosyvoice"):
        file = descriptor_pb2.FileDescriptorProto(name=f"{package}.proto", package=package, syntax="proto3")
        for full_name, fields in FIELDS.items():
            if full_name.startswith(f"{package}."):
                message = file.message_type.add(name=full_name.partition(".")[2])
                for name, (number, declared) in fields.items():
                    kind = declared.removeprefix("repeated ")
                    field = message.field.add(name=name, number=number, label=3 if kind != declared else 1)
                    if kind in _TYPES:
                        field.type = _TYPES[kind]
                    else:
                        field.type, field.type_name = 11, f".{kind}"
        pool.Add(file)
    return {name: message_factory.GetMessageClass(pool.FindMessageTypeByName(name)) for name in FIELDS}


MESSAGES = _classes()
