"""Launches that are asked for and not yet made."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from kdsl_core.lang.arguments import bind
from kdsl_core.lang.launch import Launch, launches_go_to

if TYPE_CHECKING:
    from kdsl_core.lang.specialisation import Specialisation


class Work(NamedTuple):
    """`launch(*arrays, **statics)`."""

    launch: Launch
    arrays: tuple[Any, ...]
    statics: Mapping[str, Any]

    def run(self) -> None:
        """Launch, on the arrays' current stream."""
        self.launch(*self.arrays, **self.statics)

    def simulate(self, **options: Any) -> Any:
        """Run in the simulator; `options` and result as `kd.simulate`."""
        import kdsl_core as kd

        place = self.launch.place(*self.arrays, **self.statics)
        return kd.simulate(
            self.launch.kernel, grid=place.grid, block=place.block, cluster=place.cluster,
            args=self.arrays, kwargs=dict(self.statics), **options,
        )  # fmt: skip

    @property
    def needed(self) -> tuple[Any, Specialisation]:
        """The kernel and what has to be built of it."""
        kernel = self.launch.kernel
        place = self.launch.place(*self.arrays, **self.statics)
        bound = bind(kernel.signature, self.arrays, dict(self.statics))
        return kernel, kernel.specialised(bound, place.block, place.cluster)


def work_of(function: Callable[[], Any]) -> list[Work]:
    """The launches that `function` makes, in order, without one of them made."""
    found: list[Work] = []
    with launches_go_to(lambda *launched: found.append(Work(*launched))):
        function()
    return found
