"""Tables in Markdown, and the remarks below them."""

from typing import Any


def remarks(records: list[dict[str, Any]]) -> list[str]:
    """Remarks: who was not timed and why, what a note says, who judged, which rounds were disturbed."""
    said = not_timed(records)
    said += [f"{r['contestant']}: {r['note']}" for r in records if r.get("note")]
    for judge in dict.fromkeys(r["judged_by"] for r in records if "judged_by" in r):
        names = [r["contestant"] for r in records if r.get("judged_by") == judge]
        whose = "" if len(names) == sum("judged_by" in r for r in records) else f" ({', '.join(names)})"
        said.append(f"judged by: {judge}{whose}")
    timed = [r for r in records if r["status"] == "timed"]
    if timed:
        counts = f"{len(timed[0]['seconds'])} rounds kept, {timed[0]['rounds_thrown_away']} thrown away"
        kept = timed[0]["rounds_disturbed"]
        said.append(counts + (f"; {kept} of those kept were also disturbed" if kept else ""))
    return said


def groups(records: list[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """Group records by case and measure, in the order in which they were measured."""
    found: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for record in records:
        found.setdefault((record["case"], record["measure"]), []).append(record)
    return list(found.values())


def not_timed(records: list[dict[str, Any]]) -> list[str]:
    """Contestants that were not timed, and why."""
    return [f"{r['contestant']}: {r['status']}: {r['reason']}" for r in records if r["status"] != "timed"]


def listed(records: list[dict[str, Any]]) -> str:
    """Contestants that were not timed, by case, as a list in Markdown."""
    return "".join(f"- {r['case']}, {r['measure']}: {line}\n" for r in records for line in not_timed([r]))


def table(header: tuple[str, ...], rows: list[list[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |\n" for line in lines)
