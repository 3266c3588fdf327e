"""The C header of one variant: its arguments, how it is loaded, and how it is launched."""

from __future__ import annotations

from collections.abc import Iterator

from kdsl_core.lang.traced import Traced
from kdsl_core.ptx import PtxModule
from kdsl_runtime.export.arguments import fields, reach_checks
from kdsl_runtime.export.maps import map_lines
from kdsl_runtime.manifest import Variant

_TEMPLATE = """\
/* {variant}
   Written by `kdsl export`. */
#ifndef KDSL_{upper}_H
#define KDSL_{upper}_H

#include "kdsl_loader.h"

typedef struct {{
{fields}
}} {name}_args;

/* Loads {name}.cubin, which is at `path`, in the caller's current context. */
static inline int {name}_load(kdsl_kernel *kernel, const char *path) {{
    return kdsl_load_file(kernel, path, "{entry}", {shared});
}}

/* Puts a launch of `grid` blocks of ({block}) threads on a stream. */
static inline int {name}_launch(const kdsl_kernel *kernel, const unsigned grid[3], CUstream stream,
                                const {name}_args *args) {{
    kdsl_shape shape = {{{{grid[0], grid[1], grid[2]}}, {{{block}}}, {{{cluster}}}, {shared}}};
{body}
}}

#endif
"""


def header(variant: Variant, name: str, traced: Traced, module: PtxModule) -> str:
    """The text of `name`.h.

    Raises: ArgumentError K745 for a tensor map that C code cannot make.
    """
    found = fields(traced)
    return _TEMPLATE.format(
        variant=str(variant).replace("*/", "* /"),
        name=name,
        upper=name.upper(),
        entry=module.entry,
        fields="\n".join(field.declaration for field in found) or "    char none;",
        block=", ".join(map(str, variant.block)),
        cluster=", ".join(map(str, (*variant.cluster, 1, 1)[:3] if variant.cluster else (0, 0, 0))),
        shared=module.shared_bytes,
        body="\n".join(_body(traced)),
    )


def _body(traced: Traced) -> Iterator[str]:
    found = fields(traced)
    maps = map_lines(traced)
    count = sum(param.map is not None for param in traced.kernel.params)
    addresses = [f"(void *)&args->{field.name}" for field in found]
    addresses += [f"&maps[{index}]" for index in range(count)]
    if maps:
        yield f"    CUtensorMap maps[{count}];"
    yield f"    void *params[] = {{{', '.join(addresses) or 'NULL'}}};"
    yield "    int code = 0;"
    checks = [field.check for field in found if field.check]
    for check in (*checks, *reach_checks(traced.specialisation.classes)):
        yield f"    if (!({check})) return KDSL_BAD_ARGUMENT;"
    yield from maps
    yield "    return code != 0 ? code : kdsl_launch(kernel, &shape, params, stream);"
