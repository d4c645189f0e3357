"""Every family's builder has the parameters that transformers' model on the meta device has, for configs that are drawn."""

import random
from collections import Counter

import pytest
from drawn_configs import FAMILIES, NO_CAUSAL, NOT_CAUSAL, drawn, sizes_of_builder, sizes_of_transformers

import hosim
from hosim.errors import InputError
from hosim.models.config_json import READERS
from hosim.models.unknown_parts import UNKNOWN_PARTS

DECODERS = [kind for kind in FAMILIES if kind not in NOT_CAUSAL]
OTHER_NAMES = ("afmoe", "gpt_oss", *NO_CAUSAL)
"""Families some of whose parts have other names here."""


def check(kind, draws, first=0):
    """Parameters of draws, each in turn of the config that was drawn and of what transformers saves of it."""
    for n in range(first, first + draws):
        config = drawn(kind, random.Random(f"{kind} {n}"))
        saved, theirs = sizes_of_transformers(kind, config)
        for given in (config, saved) if draws > 2 else ((config, saved)[n % 2],):
            given = {key: value for key, value in given.items() if key not in ("model_type", "dtype")}
            ours = sizes_of_builder(kind, given)
            assert Counter(ours.values()) == Counter(theirs.values()), (kind, config)
            if kind not in OTHER_NAMES:
                assert ours == theirs, (kind, config)


@pytest.mark.parametrize("kind", DECODERS)
def test_parameters_are_those_of_transformers(kind):
    check(kind, 2)


@pytest.mark.long
@pytest.mark.parametrize("kind", DECODERS)
def test_parameters_of_many_configs_are_those_of_transformers(kind):
    check(kind, 20, first=2)


def test_most_types_that_transformers_knows_are_accepted(capsys):
    """Of its language models those that are published as such: no encoders, halves of translators, or parts of larger models."""
    auto = pytest.importorskip("transformers").models.auto.modeling_auto
    known = set(auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)
    accepted = known & READERS.keys()
    with capsys.disabled():
        print(f"\n{len(accepted)} of {len(known)} model types with a causal language model in transformers are accepted")
    assert len(accepted) >= 95


@pytest.mark.parametrize("kind", sorted(UNKNOWN_PARTS))
def test_a_part_that_is_unknown_is_named(kind):
    with pytest.raises(InputError) as error:
        hosim.load({"model_type": kind, "hidden_size": 64})
    assert UNKNOWN_PARTS[kind] in error.value.message
    assert error.value.where == "model.model_type"
    assert kind not in READERS
