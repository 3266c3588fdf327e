"""Run a kernel in the simulator and, where there is a GPU, on it too, and compare the bits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from kdsl_runtime.device_copy import DeviceCopy, stored_once

Array: TypeAlias = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Executor:
    """Launches kernels for a test; `gpu` says that the GPU must agree with the simulator.

    `note` is told what the two gave, before their bits are asserted to be equal.
    """

    gpu: bool
    note: Callable[[Array, Array], None] = lambda simulated, measured: None

    def __call__(
        self,
        kernel: Any,
        grid: Any,
        block: Any,
        *arrays: Any,
        cluster: Any = None,
        **statics: Any,
    ) -> list[Array]:
        """The arrays after the launch, in copies; array arguments stay as they are."""
        launch = kernel.configure(grid=grid, block=block, cluster=cluster)
        return self.run(lambda *held: launch(*held, **statics), *arrays)

    def run(self, action: Callable[..., Any], *arrays: Any) -> list[Array]:
        """The arrays after `action(*arrays)`, which may launch several kernels on them."""
        simulated = [_copy(array) for array in arrays]
        action(*simulated)
        if self.gpu:
            for ours, theirs in zip(simulated, _on_gpu(action, arrays), strict=True):
                if isinstance(ours, np.ndarray):
                    self.note(ours, theirs)
                    assert_agree(ours, theirs)
        return [array for array in simulated if isinstance(array, np.ndarray)]


def assert_agree(simulated: Array, measured: Array) -> None:
    """Equal bits."""
    differ = int(np.sum(_bits(simulated) != _bits(measured)))
    same = simulated.tobytes() == measured.tobytes()
    assert same, f"{differ} of {simulated.size} elements differ between simulator and GPU"


def _bits(array: Array) -> Array:
    dense = np.ascontiguousarray(array)
    return dense.view(np.uint8).reshape(*array.shape, -1).astype(np.int16).sum(axis=-1)


def _copy(array: Any) -> Any:
    """A copy with the same order of modes and the same broadcasts, or the number itself."""
    if not isinstance(array, np.ndarray):
        return array
    stored = stored_once(array)
    order = np.argsort([-abs(step) for step in stored.strides], kind="stable")
    dense = np.ascontiguousarray(stored.transpose(order)).copy().transpose(np.argsort(order))
    return dense if stored.shape == array.shape else np.broadcast_to(dense, array.shape)


def _on_gpu(action: Callable[..., Any], arrays: Sequence[Any]) -> list[Any]:
    held = [DeviceCopy(array) if isinstance(array, np.ndarray) else array for array in arrays]
    action(*held)
    return [item.read() if isinstance(item, DeviceCopy) else item for item in held]
