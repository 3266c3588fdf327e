"""A product whose K is split: one launch leaves parts of the sums, a second one adds them up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from kdsl_core.dtypes import f32
from kdsl_fuse.calls import KernelCall, Needed

_OPERANDS = 2  # A and B


@dataclass(eq=False)
class SplitCall(KernelCall):
    """The call of a kernel that writes (m, n, splits) f32 sums, and of `sum_parts` behind it.

    `tail` is the epilogue, which the second launch applies.
    """

    tail: Any = None

    @property
    def epilogue(self) -> Any:
        """The pointwise function applied to each sum."""
        return self.tail

    def run(self, values: Mapping[str, Any], outputs: Sequence[Any] | None = None) -> Any:
        """Both launches on arrays by value name; returns the output."""
        from kdsl_fuse.kernels.sum_parts import add_up

        (output,) = self.empty_outputs(values) if outputs is None else outputs
        operands, parts, result, extras = self._all(values, output)
        self.launch(*operands, parts, **self.statics)
        add_up(parts, [result], extras, self.tail)
        return output

    def arguments(self, values: Mapping[str, Any], *outputs: Any) -> list[Any]:
        """The array arguments of the first launch."""
        operands, parts, _, _ = self._all(values, *outputs)
        return [*operands, parts]

    def _all(self, values: Mapping[str, Any], output: Any) -> tuple[Any, Any, Any, list[Any]]:
        """Operands, memory for the parts, the output and extras, as the kernels see them."""
        from kdsl_fuse.kernels.sum_parts import empty_parts

        given = super().arguments(values, output)
        result, *extras = given[_OPERANDS:]
        return given[:_OPERANDS], empty_parts(result, self.config.splits, f32), result, extras

    def simulate(self, values: Mapping[str, Any], **options: Any) -> Any:
        """Both launches in the simulator, with the findings of both."""
        import kdsl_core as kd
        from kdsl_fuse.kernels.sum_parts import THREADS, SumShares, along_of, sum_parts

        operands, parts, result, extras = self._all(values, *self.empty_outputs(values))
        first = kd.simulate(
            self.kernel, grid=self.grid, block=self.block, cluster=self.cluster,
            args=(*operands, parts), kwargs=dict(self.statics), **options,
        )  # fmt: skip
        shares = SumShares.of(result.shape, along_of(result), self.config.splits)
        second = kd.simulate(
            sum_parts, grid=shares.grid, block=THREADS, args=(parts, result, *extras),
            kwargs={"epilogue": self.tail, **shares.statics}, **options,
        )  # fmt: skip
        names = (*first.names[:_OPERANDS], *second.names[1:])
        outputs = (*first.outputs[:_OPERANDS], *second.outputs[1:])
        return replace(first.followed_by(second), outputs=outputs, names=names)

    def needs(self) -> list[Needed]:
        """The kernels of both launches, for arrays at multiples of 16 bytes."""
        from kdsl_fuse.kernels.sum_parts import THREADS, sum_parts

        parts = self.specs()[_OPERANDS]
        _, _, result, *extras = super().specs()
        options = {"epilogue": self.tail, "parts": self.config.splits}
        added = sum_parts.specialisation(parts, result, *extras, block=THREADS, **options)
        return [*super().needs(), (sum_parts, added)]

    def specs(self) -> Sequence[Any]:
        """The array arguments of the first launch as `kd.spec`s."""
        import kdsl_core as kd

        *operands, output = super().specs()[: _OPERANDS + 1]
        (m, n), splits = output.shape, self.config.splits
        parts = kd.spec(f32, (m, n, splits), strides=(*output.strides, m * n))
        return [*operands, parts]
