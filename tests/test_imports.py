"""Imports run one way: a module may import only from the floors below it, or from its own floor without circles."""

import ast
from pathlib import Path

import core_lens

ROOT = Path(core_lens.__file__).parent
FLOORS = {
    "errors": 0, "components": 0, "hard_concrete": 0, "intervals": 0, "files": 0, "metrics": 0, "workers": 1,
    "tasks": 1, "lab": 1, "hooked": 1, "maps": 1,
    "ablation": 2, "gates": 2, "subnetwork": 2, "selection": 2, "weight_mask": 2, "completions": 2, "training": 2,
    "pruners": 3, "magnitude": 3, "tickets": 3, "evaluate": 3, "finetune": 3,
    "significance": 3, "stability": 3, "run_folder": 3, "simplify": 3, "language_model": 3,
    "overlap": 4, "core": 4, "heads": 4, "head_maps": 4, "ablation_runs": 4, "interactions": 4, "effective_size": 4,
    "generalization": 4,
    "comparison": 5, "plan": 5, "viz": 5, "dyck": 5, "code": 5,
    "runs": 6, "report": 6, "api": 6, "lottery": 6, "illusions": 7, "sweep": 7,
    "scripts": 8, "cli": 8, "__init__": 9, "__main__": 9,
}  # fmt: skip
LATE = {
    ("tasks", "lab"),
    ("hooked", "lab"),
    ("core", "viz"),
    ("core", "report"),
    ("subnetwork", "viz"),
    ("tasks", "viz"),
}
"""Imports inside functions: the lab's task and models are known by name, and what is shown is reached from what it shows."""


def arrows() -> set[tuple[str, str, bool]]:
    """(importing room, imported room, whether at the top of the module)."""
    found = set()
    for path in ROOT.rglob("*.py"):
        parts = path.relative_to(ROOT).with_suffix("").parts
        room = parts[0]
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            if not isinstance(node, ast.ImportFrom) or not node.level:
                continue
            base = (
                (*parts, "x")[: len(parts) - node.level]
                if path.name != "__init__.py"
                else parts[: len(parts) - node.level]
            )
            if len(parts) == 1:
                base = ()
            target = (*base, *(node.module.split(".") if node.module else ()))
            names = [target[0]] if target else [alias.name for alias in node.names]
            found |= {(room, name, node in tree.body) for name in names if name != room}
    return found


def test_every_room_has_a_floor():
    rooms = {path.relative_to(ROOT).with_suffix("").parts[0] for path in ROOT.rglob("*.py")}
    assert rooms <= set(FLOORS), f"give {rooms - set(FLOORS)} a floor here and in the architecture page"


def test_no_arrow_runs_up_and_there_is_no_circle():
    known = {(a, b) for a, b, top in arrows() if b in FLOORS and (top or (a, b) not in LATE)}
    assert ("gates", "components") in known  # the walk sees something
    up = {(a, b) for a, b in known if FLOORS[b] > FLOORS[a]}
    assert not up
    level = {(a, b) for a, b in known if FLOORS[b] == FLOORS[a]}
    while level:
        sources = {a for a, _ in level}
        ends = {(a, b) for a, b in level if b not in sources}
        assert ends, f"a circle among {sorted(level)}"
        level -= ends
