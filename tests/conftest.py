"""Tests read the project's own helpers from this folder, and the real data beside the project where it is there."""

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from jaxtyping import install_import_hook

# Annotated tensor shapes are checked while tests run; this import comes before any test's own. Rooms that turn a user's
# wrong type into a sentence are left out, as the checker would speak first.
SHAPED = ("gates", "subnetwork", "hard_concrete", "pruners.base", "hooked.batches")
with install_import_hook([f"core_lens.{room}" for room in SHAPED], "beartype.beartype"):
    import core_lens  # noqa: F401

SHARED = Path(__file__).parents[2] / "shared" / "data"


@pytest.fixture(scope="session")
def shared() -> Path:
    """Real data that stands beside the project on some machines."""
    if not SHARED.is_dir():
        pytest.skip("the real data does not stand beside the project (../shared/data)")
    return SHARED


@pytest.fixture(scope="session")
def browser(tmp_path_factory) -> Callable[..., str]:
    """A function from a document and a window's width to the document after its scripts ran, without a network."""
    names = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
    program = next(filter(None, map(shutil.which, names)), None)
    if program is None:
        pytest.skip("there is no Chromium here to open the page with")
    folder = tmp_path_factory.mktemp("browser")

    def run(document: str, width: int = 1200) -> str:
        path = folder / "page.html"
        path.write_text(document, encoding="utf-8")
        options = ["--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={folder / 'profile'}"]
        options += ["--host-resolver-rules=MAP * 127.0.0.1:9", f"--window-size={width},2000"]
        command = [program, *options, "--virtual-time-budget=5000", "--dump-dom", path.as_uri()]
        return subprocess.run(command, capture_output=True, timeout=120, check=True).stdout.decode()

    return run
