"""One self-contained page on a run: what was done, what was found and how sure that is, readable offline and on a phone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..core import Core
from ..errors import SavedFileError
from ..evaluate import check_numbers
from ..files import check_folder
from ..tasks import Task
from ..viz import attention
from ..viz.html import escape, page, write_page
from .findings import Findings, find_model_and_task, gather
from .layout import SORT, STYLE, paragraph
from .sections import sections

__all__ = ["write_report"]


def write_report(
    core: Core,
    path: str | Path,
    model: Any = None,
    task: str | Task | None = None,
    *,
    examples: int = 2,
    max_examples: int | None = 50,
    others: Mapping[str, Core] | Sequence[Core] = (),
    data_dir: str | Path | None = None,
    tokenizer: Any = None,
    device: Any = None,
) -> Path:
    """Write everything that is known of a run into one HTML file.

        write_report(Core.load("runs/lab"), "report.html")

    Args:
        core: the run.
        path: of the file.
        model: the model that the run is of, anything `load_model` takes; None looks for it where the run says. Without
            it the page has all that follows from the run, and says what is missing.
        task: its task, or the task's name; None loads the one that the run names.
        examples: shown with their attention, of the first in-domain and the first out-of-domain split each.
        max_examples: per split, for ablations, which take most of the time (attention patterns and floors are of four
            times as many); None for all.
        others: cores of the same model that were found in other ways, as `Core.overlap` takes them.
        data_dir: where the files of a task that is given by name are.
        tokenizer, device: as in `load_model`.

    Returns:
        The path.

    Raises:
        SavedFileError: the file cannot be written.
        CoreLensError: a model or task that is given is not the run's, or cannot be used.
    """
    check_numbers(examples=examples, max_examples=max_examples)
    check_folder(Path(path).parent)
    if Path(path).is_dir():
        raise SavedFileError(f"cannot write {path}: it is a folder; name a file in it.")
    bridge, known, missing = find_model_and_task(core, model, task, data_dir, tokenizer, device)
    found = gather(core, bridge, known, missing, examples=examples, max_examples=max_examples, others=others)
    return write_page(path, _page(found))


def _page(found: Findings) -> str:
    origin = found.core.provenance
    title = f"Heuristic core of {origin.get('model', {}).get('model_id', '?')} on {origin.get('task', '?')}"
    parts = sections(found)
    contents = "".join(f'<a href="#{anchor}">{escape(name)}</a>\n' for anchor, name in parts)
    body = "".join(
        f'<section id="{anchor}"><h2>{escape(name)}</h2>\n{html}</section>\n' for (anchor, name), html in parts.items()
    )
    head = f"<h1>{escape(title)}</h1>\n" + "".join(paragraph(text, soft=True) for text in found.missing)
    scripts = [SORT, *(attention.scripts() if found.view else [])]
    return page(title, f"{head}<nav>\n{contents}</nav>\n{body}", scripts, attention.STYLE + STYLE)
