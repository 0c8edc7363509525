"""Searches over anything that decodes step by step: beams, diverse beams, sampling, ensembles.

A decoder has ``start(memory) -> state`` and ``step(tokens, state) -> log-probabilities`` (:mod:`.protocol`); the
searches know no model.
"""

from vlplatform.decoding.beam import BeamSettings, beam_search
from vlplatform.decoding.diverse import DiverseSettings, diverse_beam_search
from vlplatform.decoding.ensemble import Ensemble
from vlplatform.decoding.greedy import greedy
from vlplatform.decoding.limits import Limits
from vlplatform.decoding.packed import packed
from vlplatform.decoding.protocol import Decodable, Hypothesis, Rule, State, Step, Symbols
from vlplatform.decoding.rules import Forbid, NoRepeat, merged
from vlplatform.decoding.sampling import SamplingSettings, sample
from vlplatform.decoding.sequences import Sequences
from vlplatform.decoding.state import DecoderState

__all__ = [
    "BeamSettings",
    "Decodable",
    "DecoderState",
    "DiverseSettings",
    "Ensemble",
    "Forbid",
    "Hypothesis",
    "Limits",
    "NoRepeat",
    "Rule",
    "SamplingSettings",
    "Sequences",
    "State",
    "Step",
    "Symbols",
    "beam_search",
    "diverse_beam_search",
    "greedy",
    "merged",
    "packed",
    "sample",
]
