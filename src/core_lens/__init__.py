"""core_lens finds the subnetworks of a fine-tuned transformer, the heuristic core they share, and what it does.

import core_lens
core = core_lens.find_core("lab", task="lab")
"""

from . import code, dyck, lab, simplify, stability, tickets
from .ablation import MeanActivations, MeanFitter, ResampleActivations, ZeroActivations, fit_means
from .api import find_core
from .comparison import compare_cores
from .completions import Completions
from .components import Component, ComponentSet
from .core import Core
from .effective_size import effective_size
from .errors import CoreLensError, CoreLensWarning
from .evaluate import evaluate
from .finetune import FineTuned, finetune
from .gates import Gates, inject
from .generalization import compare_proxies, generalization_gap
from .head_maps import classify_maps
from .heads import attention_patterns, classify_heads
from .hooked import load_language_model, load_model, model_info
from .illusions import Illusions, illusions
from .interactions import (
    ablate,
    ablation_table,
    core_alone,
    interaction,
    interaction_map,
    most_super_additive,
)
from .lottery import Lottery, lottery
from .magnitude import MagnitudePruner
from .plan import Plan, plan
from .pruners import HardConcretePruner, ImportancePruner, LinearizedPruner, RandomPruner
from .subnetwork import Subnetwork
from .sweep import Sweep, sweep, sweep_status
from .tasks import Split, Task, load_task
from .workers import LocalWorkers

__version__ = "0.1.0"
from .weight_mask import WeightMask

__all__ = [
    "Completions",
    "Component",
    "ComponentSet",
    "Core",
    "CoreLensError",
    "CoreLensWarning",
    "FineTuned",
    "Gates",
    "HardConcretePruner",
    "Illusions",
    "ImportancePruner",
    "LinearizedPruner",
    "LocalWorkers",
    "Lottery",
    "MagnitudePruner",
    "MeanActivations",
    "MeanFitter",
    "Plan",
    "RandomPruner",
    "ResampleActivations",
    "Split",
    "Subnetwork",
    "Sweep",
    "Task",
    "WeightMask",
    "ZeroActivations",
    "ablate",
    "ablation_table",
    "attention_patterns",
    "classify_heads",
    "classify_maps",
    "code",
    "compare_cores",
    "compare_proxies",
    "core_alone",
    "dyck",
    "effective_size",
    "evaluate",
    "find_core",
    "finetune",
    "fit_means",
    "generalization_gap",
    "illusions",
    "inject",
    "interaction",
    "interaction_map",
    "lab",
    "load_language_model",
    "load_model",
    "load_task",
    "lottery",
    "model_info",
    "most_super_additive",
    "plan",
    "simplify",
    "stability",
    "sweep",
    "sweep_status",
    "tickets",
]
