"""Tests read the project's own helpers from this folder, and the real data beside the project where it is there."""

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
