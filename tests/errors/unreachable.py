"""Error codes that no user can meet, each with the reason; `test_each_code` keeps it honest."""

from __future__ import annotations

UNREACHABLE: dict[str, str] = {
    "K410": "an operation of the house without PTX: every one in ALL_OPS overrides it",
    "K411": "an operation of the house without a meaning: every one in ALL_OPS overrides it",
    "K412": "a label placed twice: only `lower` of the control operations places labels",
}
