"""Hatch build hook: compiles proto/ext_proc.proto into extproc/processor/ for wheels, sdists and editable installs alike."""

from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class ProtoBuildHook(BuildHookInterface):
    """Generates ext_proc_pb2.py and its .pyi next to the one module that imports them."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        import grpc_tools
        from grpc_tools import protoc

        root = Path(self.root)
        target = root / "extproc" / "processor"
        status = protoc.main(
            [
                "protoc",
                f"-I{root / 'proto'}",
                f"-I{Path(grpc_tools.__file__).parent / '_proto'}",  # google/protobuf/*.proto
                f"--python_out={target}",
                f"--pyi_out={target}",
                str(root / "proto" / "ext_proc.proto"),
            ]
        )
        if status != 0:
            raise RuntimeError(f"protoc ended with status {status} on proto/ext_proc.proto")
