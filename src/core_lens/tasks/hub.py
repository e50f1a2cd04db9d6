"""Corpora from the Hugging Face hub through `datasets`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

import pandas as pd

from ..errors import TaskError
from .files import dataset_frame

PARQUET_BRANCH = "refs/convert/parquet"
"""Where the hub keeps a parquet copy of data sets whose own loading script `datasets` >= 4 no longer runs."""

_PATIENCE = 5.0  # seconds


def load(
    path: str, config: str | None = None, revision: str | None = None, instead: str = ""
) -> dict[str, pd.DataFrame]:
    """All splits of a data set on the hub, or of its copy in the local cache where the hub cannot be reached.

    Args:
        path: repository, e.g. nyu-mll/glue.
        config: its configuration.
        revision: branch or commit.
        instead: which files to pass otherwise, for the message.

    Returns:
        Split -> frame, class labels by name.

    Raises:
        TaskError: neither the hub nor the cache has it.
    """
    import datasets

    reachable = hub_answers()
    try:
        with _no_retries(reachable):
            data = datasets.load_dataset(path, config, revision=revision)
    except Exception as error:  # anything from a proxy's answer to a download cut short
        reason = "the hub cannot be reached and the cache has no copy"
        if reachable:
            reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise TaskError(
            f"cannot load {path}{f' ({config})' if config else ''} from the Hugging Face hub: {reason}; "
            f"pass data_dir= with a folder that holds {instead or 'its files'}."
        ) from error
    return {str(name): dataset_frame(part) for name, part in data.items()}


def hub_answers() -> bool:
    """Whether the hub (or the mirror or proxy that is set up) answers within seconds; asked once."""
    from huggingface_hub import constants
    from huggingface_hub.utils import get_session

    try:
        get_session().head(constants.ENDPOINT, timeout=_PATIENCE)
    except Exception:  # offline mode, no name server, refused, timed out: which of them makes no difference
        return False
    return True


@contextmanager
def _no_retries(reachable: bool) -> Iterator[None]:
    """Without a connection, look in the cache only: each attempt would be repeated for half a minute."""
    if reachable:
        yield
        return
    import datasets.config
    import huggingface_hub.constants

    with (
        patch.object(datasets.config, "HF_HUB_OFFLINE", True),
        patch.object(huggingface_hub.constants, "HF_HUB_OFFLINE", True),
    ):
        yield
