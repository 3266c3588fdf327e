"""Kinds of edits to a kernel's program: as a text before and after, or done while it runs.

`EDITS` change the PTX; `LIVE` do so inside a running process; `SAME` must not cost a trace.
"""

from __future__ import annotations

from dataclasses import dataclass

KERNEL = """
import kdsl_core as kd
{prelude}
@kd.kernel
def k(x: kd.Tensor["i32", "n"]):
    i = kd.thread_idx()[0]
    x[i] = {value}
"""


@dataclass(frozen=True)
class Edit:
    """Texts of the kernel's module, and of a module `lib` beside it, before and after an edit."""

    name: str
    before: str
    after: str
    lib: tuple[str, str] = ("", "")


def prelude(
    name: str, before: str, after: str, value: str, lib: tuple[str, str] = ("", "")
) -> Edit:
    """An edit of what stands above the kernel."""
    texts = (KERNEL.format(prelude=text, value=value) for text in (before, after))
    return Edit(name, *texts, lib)


def body(name: str, before: str, after: str, above: str = "") -> Edit:
    """An edit of the kernel's own expression."""
    texts = (KERNEL.format(prelude=above, value=value) for value in (before, after))
    return Edit(name, *texts)


def module(name: str, before: str, after: str) -> Edit:
    """An edit of a module `lib`, which the kernel's module imports."""
    above, _, value = name.partition(" -> ")
    return prelude(name, above, above, value, (before, after))


def one(name: str, text: str, value: str, old: str = "2", new: str = "3") -> Edit:
    """An edit of one number, which stands for $ in a text."""
    return prelude(name, text.replace("$", old), text.replace("$", new), value)


_ONE = KERNEL.format(prelude="", value="x[i] + 1")

EDITS = (
    body("kernel body", "x[i] + 2", "x[i] + 3"),
    body("operator", "x[i] + 2", "x[i] - 2"),
    body("dtype in the body", "(x[i].to(kd.f32) * 0.5).to(kd.i32)",
         "(x[i].to(kd.f16) * 0.5).to(kd.i32)"),
    body("literal of another type", "x[i] + int(isinstance(1, float))",
         "x[i] + int(isinstance(1.0, float))"),
    one("global", "F = $", "x[i] + F"),
    one("global of equal value and other type", "F = $", "x[i] + isinstance(F, float)", "1", "1.0"),
    one("negative zero", "F = $", "(x[i].to(kd.f32) + F).to(kd.i32)", "0.0", "-0.0"),
    one("list item", "F = [1, $]", "x[i] + F[1]"),
    one("dict value", "F = {'a': $}", "x[i] + F['a']"),
    prelude("dict order", "F = {'a': 1, 'b': 2}", "F = {'b': 2, 'a': 1}",
            "x[i] * 5 + [*F.values()][0]"),
    one("set item", "F = {1, $}", "x[i] + sum(F)"),
    one("array item", "import numpy as np\nF = np.array([1, $])", "x[i] + int(F[1])"),
    one("array dtype", "import numpy as np\nF = np.zeros(1, '$')", "x[i] + F.dtype.itemsize",
        "i4", "i8"),
    one("bytearray", "F = bytearray([$])", "x[i] + F[0]"),
    one("helper body", "def h(v): return v * $", "h(x[i])"),
    one("helper of a helper", "def g(v): return v * $\ndef h(v): return g(v)", "h(x[i])"),
    one("staged helper", "@kd.func\ndef h(v):\n    if v > $:\n        v = v - 1\n    return v",
        "h(x[i])"),
    one("keyword of a call", "def g(v, a=1, b=5): return v * a + b\ndef h(v): return g(v, $=3)",
        "h(x[i])", "a", "b"),
    one("default", "def h(v, f=$): return v * f", "h(x[i])"),
    one("keyword default", "def h(v, *, f=$): return v * f", "h(x[i])"),
    one("closure", "def make(f):\n    def h(v): return v * f\n    return h\nh = make($)",
        "h(x[i])"),
    one("lambda", "h = lambda v: v * $", "h(x[i])"),
    one("partial", "import functools\ndef g(f, v): return v * f\nh = functools.partial(g, $)",
        "h(x[i])"),
    one("cached helper", "import functools\n@functools.cache\ndef h(): return $", "x[i] * h()"),
    one("wrapped helper",
        "import functools\ndef twice(f):\n    @functools.wraps(f)\n    def g(v): return f(f(v))\n"
        "    return g\n@twice\ndef h(v): return v * $", "h(x[i])"),
    one("context manager",
        "import contextlib\n@contextlib.contextmanager\ndef h(): yield $\n"
        "def g():\n    with h() as f: return f", "x[i] * g()"),
    one("class attribute", "class C: f = $", "x[i] * C.f"),
    one("inherited attribute", "class B: f = $\nclass C(B): pass", "x[i] * C().f"),
    one("nested attribute", "from types import SimpleNamespace as N\nc = N(a=N(f=$))",
        "x[i] * c.a.f"),
    one("attribute that only a method reads",
        "class C:\n    def __init__(self): self.f = $\n    def g(self): return self.f\nc = C()",
        "x[i] * c.g()"),
    one("method", "class C:\n    def g(self): return $\nc = C()", "x[i] * c.g()"),
    one("bound method", "class C:\n    def g(self): return $\ng = C().g", "x[i] * g()"),
    one("property", "class C:\n    @property\n    def f(self): return $\nc = C()", "x[i] * c.f"),
    one("special method", "class C:\n    def __call__(self, v): return v * $\nc = C()", "c(x[i])"),
    one("operator of a class", "class C:\n    def __rmul__(self, v): return v * $\nc = C()",
        "(lambda v: c.__rmul__(v))(x[i])"),
    one("item of a class", "class C:\n    def __getitem__(self, n): return n * $\nc = C()",
        "x[i] * c[5]"),
    one("slot", "class C:\n    __slots__ = ('f',)\nc = C()\nc.f = $", "x[i] * c.f"),
    one("dataclass field", "import dataclasses\n@dataclasses.dataclass(frozen=True)\nclass C:\n"
        "    f: int\nc = C($)", "x[i] * c.f"),
    one("dataclass default", "import dataclasses\n@dataclasses.dataclass\nclass C:\n    f: int = $",
        "x[i] * C().f"),
    one("enum value", "import enum\nclass E(enum.Enum):\n    A = $", "x[i] * E.A.value"),
    one("named tuple", "import collections\nc = collections.namedtuple('P', 'f')($)", "x[i] * c.f"),
    one("subclass of a number", "class C(int): pass\nc = C($)", "x[i] * int(c)"),
    one("attribute of a list's subclass", "class C(list): f = $\nc = C()", "x[i] * c.f"),
    one("method of a tuple's subclass",
        "from typing import NamedTuple\nclass C(NamedTuple):\n    m: int\n"
        "    def f(self): return self.m * $\nc = C(5)", "x[i] * c.f()"),
    one("array of bf16", "import numpy as np, ml_dtypes\nF = np.array([$], ml_dtypes.bfloat16)",
        "x[i] * int(F[0])"),
    one("attribute by text", "class C: f2 = $\nc = C()", "x[i] * getattr(c, 'f2')"),
    one("attribute by a computed text", "class C: f2 = $\nc = C()",
        "x[i] * getattr(c, 'f' + str(2))"),
    one("global by a computed text", "F2 = $", "x[i] * globals()['F' + str(2)]"),
    one("builtin hidden by a global", "$", "x[i] + len((1, 2))", "", "def len(v): return 7"),
    module("import lib -> x[i] * lib.F", "F = 2", "F = 3"),
    module("from lib import F -> x[i] * F", "F = 2", "F = 3"),
    module("from lib import * -> h(x[i])", "def h(v): return v * 2", "def h(v): return v * 3"),
    module("import lib -> lib.h(x[i])", "def h(v): return v * 2", "def h(v): return v * 3"),
    module("from lib import h -> h(x[i])", "F = 2\ndef h(v): return v * F",
           "F = 3\ndef h(v): return v * F"),
    module("from lib import C -> x[i] * C().f", "class C: f = 2", "class C: f = 3"),
    Edit("size of an argument", _ONE, _ONE.replace('"i32", "n"', '"i32", "8"')),
    Edit("scalar argument", _ONE, _ONE.replace('"n"]', '"n"], a: kd.i32 = 1')),
    Edit("name of the kernel", _ONE, _ONE.replace("kernel\n", "kernel(name='other')\n")),
    Edit("blocks per multiprocessor", _ONE,
         _ONE.replace("kernel\n", "kernel(min_blocks_per_sm=2)\n")),
    Edit("import in the body", *(
        KERNEL.format(prelude="import lib", value="x[i] * h()").replace(
            "@kd.kernel", "def h():\n    from lib import F\n    return F\n@kd.kernel"
        ) for _ in range(2)), ("F = 2", "F = 3")),
)  # fmt: skip

# (name, what stands above the kernel, its value, the statement that edits the running program)
LIVE = (
    ("global", "F = 2", "x[i] * F", "F = 3"),
    ("deleted global", "len = lambda v: 9", "x[i] * len((1, 2))", "del len"),
    ("new global over a builtin", "", "x[i] * len((1, 2))", "len = lambda v: 9"),
    ("list", "F = [2]", "x[i] * F[0]", "F[0] = 3"),
    ("deque", "import collections\nF = collections.deque([2])", "x[i] * F[0]", "F[0] = 3"),
    ("array", "import numpy as np\nF = np.array([2])", "x[i] * int(F[0])", "F[0] = 3"),
    ("attribute", "from types import SimpleNamespace as N\nc = N(f=2)", "x[i] * c.f", "c.f = 3"),
    ("attribute that a method reads", "class C:\n    f = 2\n    def g(self): return self.f\n"
     "c = C()", "x[i] * c.g()", "c.f = 3"),
    ("class attribute", "class C: f = 2\nc = C()", "x[i] * c.f", "C.f = 3"),
    ("slot", "class C: __slots__ = ('f',)\nc = C()\nc.f = 2", "x[i] * c.f", "c.f = 3"),
    ("special method", "class C:\n    def __call__(self): return 2\nc = C()", "x[i] * c()",
     "C.__call__ = lambda self: 3"),
    ("property", "class C:\n    F = 2\n    @property\n    def f(self): return self.F\nc = C()",
     "x[i] * c.f", "C.F = 3"),
    ("code", "def h(v): return v * 2", "h(x[i])", "h.__code__ = (lambda v: v * 3).__code__"),
    ("default", "def h(v, f=2): return v * f", "h(x[i])", "h.__defaults__ = (3,)"),
    ("keyword default", "def h(v, *, f=2): return v * f", "h(x[i])", "h.__kwdefaults__['f'] = 3"),
    ("partial", "import functools\nd = {'f': 2}\ndef g(v, f): return v * f\n"
     "h = functools.partial(g, **d)", "h(x[i])", "h.keywords['f'] = 3"),
    ("environment", "import os", "x[i] * int(os.environ.get('KDSL_TEST_F', '2'))",
     "os.environ['KDSL_TEST_F'] = '3'"),
    ("file", "from pathlib import Path\np = Path(__file__).with_name('f.txt')\np.write_text('2')",
     "x[i] * int(p.read_text())", "p.write_text('3')"),
)  # fmt: skip

_PLAIN = KERNEL.format(
    prelude="F = 2\ndef h(v):\n    return v * F\ndef other(v):\n    return v + 1", value="h(x[i])"
)

SAME = (
    Edit("nothing", _PLAIN, _PLAIN),
    Edit("comment", _PLAIN, _PLAIN.replace("return v * F", "return v * F  # twice")),
    Edit("comment in the kernel", _PLAIN,
         _PLAIN.replace("    i = kd", "    # the thread\n    i = kd")),
    Edit("blank line", _PLAIN, "\n\n" + _PLAIN.replace("    i = kd", "\n    i = kd")),
    Edit("trailing blanks", _PLAIN, _PLAIN.replace("v * F", "v * F   ")),
    Edit("docstring of a helper", _PLAIN,
         _PLAIN.replace("def h(v):\n", 'def h(v):\n    """Twice."""\n')),
    Edit("docstring of the kernel", _PLAIN,
         _PLAIN.replace("    i = kd", '    """Doc."""\n    i = kd')),
    Edit("parentheses", _PLAIN, _PLAIN.replace("return v * F", "return (v * F)")),
    Edit("unread global", _PLAIN, _PLAIN.replace("F = 2", "F = 2\nG = 3")),
    Edit("unused function", _PLAIN, _PLAIN.replace("return v + 1", "return v + 2")),
    Edit("order of definitions", _PLAIN,
         _PLAIN.replace("F = 2\n", "").replace("@kd", "F = 2\n@kd")),
    Edit("unused import", _PLAIN, "import json\n" + _PLAIN),
    Edit("another kernel", _PLAIN,
         _PLAIN + '@kd.kernel\ndef z(x: kd.Tensor["i32", "n"]):\n    x[0] = 1\n'),
    Edit("annotation of a local", _PLAIN, _PLAIN.replace("def h(v):", "def h(v: int):")),
)  # fmt: skip
