"""Tests read the project's own helpers from this folder, and the real data beside the project where it is there."""

from pathlib import Path

import pytest

SHARED = Path(__file__).parents[2] / "shared" / "data"


@pytest.fixture(scope="session")
def shared() -> Path:
    """Real data that stands beside the project on some machines."""
    if not SHARED.is_dir():
        pytest.skip("the real data does not stand beside the project (../shared/data)")
    return SHARED
