"""Prometheus text as JSON, so that one jq serves every stats endpoint.

Shape: {name: value} for a name with one sample and no labels, else {name: [{"labels": {…}, "value": v}, …]}. A value
that is NaN or infinite is null (some gauges are, before the first request) and its name is reported apart.
"""

from __future__ import annotations

import math
from typing import Any

from inferops.core.verdict import BlindError, escape


def to_json(text: str, what: str) -> tuple[dict[str, Any], frozenset[str]]:
    """The document and the names of samples that were not finite. Raises BlindError with one line on anything else than
    Prometheus text exposition, or where it holds no sample at all."""
    from prometheus_client.parser import text_string_to_metric_families

    rows: dict[str, list[dict[str, Any]]] = {}
    odd: set[str] = set()
    try:
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                value = float(sample.value)
                if not math.isfinite(value):
                    odd.add(sample.name)
                row = {"labels": dict(sample.labels), "value": value if math.isfinite(value) else None}
                rows.setdefault(sample.name, []).append(row)
    except Exception as error:  # noqa: BLE001 - the parser raises ValueError, KeyError, IndexError, … on what is not its format
        raise BlindError(
            f"{what}: expected Prometheus text, got {_start(text)} ({type(error).__name__}: {escape(str(error))[:80]})",
            "look at the endpoint with curl: is it the stats path of this engine?",
        ) from None
    if not rows:
        raise BlindError(f"{what}: expected Prometheus text, got no sample in {_start(text)}", "look at it with curl")
    flat = {
        name: found[0]["value"] if len(found) == 1 and not found[0]["labels"] else found for name, found in rows.items()
    }
    return flat, frozenset(odd)


def _start(text: str) -> str:
    return f"{len(text):,} characters starting {escape(text[:40])!r}" if text else "an empty body"
