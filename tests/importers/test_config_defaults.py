"""A ``config.json`` without a key is one with the default of transformers."""

import pytest

from hosim.errors import InputError
from hosim.io.models import READERS, sizes_of


def test_a_key_that_is_left_out_has_the_default_of_transformers_or_is_asked_for():
    transformers = pytest.importorskip("transformers")
    looked = asked = 0
    for kind in READERS:
        try:
            config = transformers.AutoConfig.for_model(kind).to_dict()
            whole = sizes_of(config)[0]
        except (ValueError, InputError):  # a type that transformers or hosim cannot make of nothing
            continue
        for key in config:
            if key == "model_type" or (key == "tie_word_embeddings" and kind.endswith("_text")):
                continue  # what is around the text says whether it is tied
            looked += 1
            try:
                assert (
                    sizes_of({name: config[name] for name in config if name != key})[0] == whole
                ), (kind, key)
            except InputError:
                asked += 1
    assert looked > 2000
    assert 10 * asked < 2 * looked
