"""How fast a device could run what was counted: one roof for each resource, the nearest decides."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from kdsl_core.inspect.devices import Device
from kdsl_core.records import dataclass

_FOOTPRINT = ("footprint_read_bytes", "footprint_written_bytes")
_PIPES = {"alu": "alu pipe", "lsu": "lsu pipe", "xu": "xu pipe"}


@dataclass(frozen=True)
class Roof:
    """One resource: how much of it the kernel needs, and how long that takes at the device's rate.

    `counters` are those of a profile whose share on a line is the line's share of the resource. One
    that is `estimated` counts PTX instructions, of which the assembler may need fewer.
    Units: `amount` in `unit`, `rate` in `unit` a second, `seconds` in s.
    """

    name: str
    amount: float
    unit: str
    rate: float
    counters: tuple[str, ...]
    estimated: bool = False

    @property
    def seconds(self) -> float:
        """The least time that the resource allows."""
        return self.amount / self.rate


@dataclass(frozen=True)
class Roofline:
    """The roofs over a kernel on a device, nearest first.

    `busy` is the share of multiprocessors that the launch's blocks can fill: rates of what belongs
    to multiprocessors are reduced to it. Nothing overlaps better than completely and no cache
    misses what it could have, so that `seconds` is a lower bound, without the launch itself. What
    TMA moves through shared memory is not in its roof.
    """

    device: Device
    busy: float
    roofs: tuple[Roof, ...]
    flops: float
    dram_bytes: float

    @property
    def bound(self) -> Roof | None:
        """The nearest roof that is no estimate."""
        return next((roof for roof in self.roofs if not roof.estimated), None)

    @property
    def seconds(self) -> float:
        """The least time of the kernel, estimates apart."""
        return self.bound.seconds if self.bound else 0.0

    @property
    def intensity(self) -> float:
        """Floating-point operations for each byte of DRAM."""
        return self.flops / self.dram_bytes if self.dram_bytes else 0.0

    def share(self, roof: Roof) -> float:
        """How near a roof is, 1 being the nearest of all."""
        return roof.seconds / self.roofs[0].seconds

    def __str__(self) -> str:
        return f"roofline on {self.device.name}: " + "; ".join(self._parts())

    def _parts(self) -> Iterator[str]:
        if self.bound is None:
            yield "nothing was counted that has a roof"
            return
        amount = quantity_text(self.bound.amount, self.bound.unit)
        yield f"at least {time_text(self.seconds)}, by {self.bound.name} ({amount})"
        first = self.roofs[0]
        if first.estimated:
            yield f"nearer, as PTX counts, is {first.name} with about {time_text(first.seconds)}"
        elif len(self.roofs) > 1:
            yield f"next {self.roofs[1].name} at {self.share(self.roofs[1]):.0%} of it"
        if self.flops:
            yield f"{self.intensity:.3g} FLOP a byte of DRAM"
        if self.busy < 1:
            yield f"its blocks fill {self.busy:.0%} of {self.device.sms} multiprocessors"


def roofline(totals: Mapping[str, float], blocks: int, device: Device) -> Roofline:
    """The roofs over a launch of some blocks whose counters are `totals`.

    DRAM moves the sectors that are touched at all where the footprint was counted, else every
    sector of every request.
    """
    busy = min(blocks / device.sms, 1.0)
    roofs = [roof for roof in _roofs(totals, device, busy) if roof.amount]
    roofs.sort(key=lambda roof: -roof.seconds)
    flops = sum(n for name, n in totals.items() if name.startswith(("flops_", "tensor_flops_")))
    return Roofline(device, busy, tuple(roofs), flops, _dram_bytes(totals))


def _dram_bytes(totals: Mapping[str, float]) -> float:
    touched = sum(totals.get(name, 0) for name in _FOOTPRINT)
    return touched or 32 * totals.get("sectors", 0)


def _roofs(totals: Mapping[str, float], device: Device, busy: float) -> Iterator[Roof]:
    yield Roof("DRAM", _dram_bytes(totals), "B", device.dram, ("sectors",))
    for kind, rate in device.tensor.items():
        name = f"tensor_flops_{kind}"
        yield Roof(f"tensor core {kind}", totals.get(name, 0), "FLOP", rate * busy, (name,))
    for kind, rate in device.plain.items():
        name = f"flops_{kind}"
        yield Roof(f"arithmetic {kind}", totals.get(name, 0), "FLOP", rate * busy, (name,))
    clocks = device.clock * device.sms * busy
    passes = totals.get("wavefronts", 0)
    yield Roof("shared memory", passes, "wavefronts", clocks, ("wavefronts",))
    issued = {name: amount for name, amount in totals.items() if name.startswith("pipe_")}
    every = tuple(sorted(issued))
    amount = sum(issued.values())
    yield Roof("issue", amount, "instructions", device.issue[""] * clocks, every, True)
    for pipe, name in _PIPES.items():
        rate = device.issue[pipe] * clocks
        counter = f"pipe_{pipe}"
        yield Roof(name, issued.get(counter, 0), "instructions", rate, (counter,), True)


def time_text(seconds: float) -> str:
    """A time with its unit: "3.21 µs".

    >>> time_text(3.21e-6), time_text(0.5)
    ('3.21 µs', '500 ms')
    """
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds / 1e-9:.3g} ns"


def amount_text(amount: float) -> str:
    """A large number in few letters: "16.8 M".

    >>> amount_text(16_777_216), amount_text(96)
    ('16.8 M', '96')
    """
    for letter, size in (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if amount >= max(size, 1e4):
            return f"{amount / size:.3g} {letter}"
    return f"{amount:,.0f}"


def quantity_text(amount: float, unit: str) -> str:
    """An amount with its unit, to which prefixes are joined where it has one.

    >>> quantity_text(8_388_608, "FLOP"), quantity_text(32_768, "wavefronts")
    ('8.39 MFLOP', '32.8 k wavefronts')
    """
    number, _, prefix = amount_text(amount).partition(" ")
    if unit in ("B", "FLOP"):
        return f"{number} {prefix}{unit}"
    return f"{amount_text(amount)} {unit}"
