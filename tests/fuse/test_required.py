"""Front doors whose package is missing say which extra brings it."""

from __future__ import annotations

import pytest

from kdsl_core.errors import FusionError
from kdsl_fuse.required import required


def test_missing_package_names_its_extra() -> None:
    """K987 with the command that mends it; a package that is there passes."""
    with pytest.raises(FusionError, match=r"pip install 'kdsl-fuse\[onnx\]'") as caught:
        required("no_such_package", "onnx")
    assert caught.value.code == "K987"
    required("numpy", "onnx")
