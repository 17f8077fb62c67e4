"""For those who test plugins: one contract class per kind of component, and random problems (`strategies`).

See docs/conformance-kit.md.
"""

from placekit_core.testing.backends import BackendContract
from placekit_core.testing.contract import Contract
from placekit_core.testing.groupers import GrouperContract
from placekit_core.testing.importers import ImporterContract
from placekit_core.testing.learnable import LearnablePolicyContract
from placekit_core.testing.policies import PolicyContract
from placekit_core.testing.trainers import TrainerContract

__all__ = [
    "BackendContract",
    "Contract",
    "GrouperContract",
    "ImporterContract",
    "LearnablePolicyContract",
    "PolicyContract",
    "TrainerContract",
]
