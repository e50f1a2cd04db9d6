"""Every mistake a user can make ends in one of these: a sentence with the offending value and the way out."""

from __future__ import annotations


class CoreLensError(Exception):
    """Base of all errors that `core_lens` raises on purpose."""


class ModelError(CoreLensError):
    """The model or its tokenizer cannot be loaded, hooked or used as asked."""


class TaskError(CoreLensError):
    """The data, its labels or its splits cannot be used as asked."""


class PruningError(CoreLensError):
    """A pruner was asked for something impossible, or its run went wrong."""


class SavedFileError(CoreLensError):
    """A file or folder that was saved cannot be read, written or trusted."""


class CoreLensWarning(UserWarning):
    """Something a reader of the results should know (few seeds, collapsed gates, a suspicious label map)."""
