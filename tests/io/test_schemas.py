"""The JSON Schemas say of a file what the readers say of it."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import cases
from test_roundtrip import HARDWARE, PLAN, RESULT, RESULTS, WORKLOAD

import hosim.io
from hosim import shipped
from hosim.base.files import KINDS, parse, read
from hosim.errors import InputError
from hosim.io import (
    comparison_to_dict,
    hardware_to_dict,
    plan_to_dict,
    result_to_dict,
    workload_to_dict,
)

jsonschema = pytest.importorskip("jsonschema")


def validator(name):
    schema = json.loads(hosim.io.to_json(hosim.io.schema(name)))
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


VALIDATORS = {name: validator(name) for name in KINDS}

EXAMPLES = {
    "workload": WORKLOAD,
    "hardware": parse(HARDWARE, "toy.yaml"),
    "plan": PLAN,
    "result": json.loads(RESULT),
    "comparison": {"format": "hosim.comparison/1", "results": [json.loads(RESULT)]},
    "routing": {
        "format": "hosim.routing/1",
        "workload": "toy",
        "gates": [
            {
                "op": "gate",
                "experts": [
                    {"tensors": ["w0"], "ops": ["ffn0"]},
                    {"tensors": ["w1"], "ops": ["ffn1"]},
                ],
            }
        ],
        "steps": [[[0]], [[1]], [[]]],
    },
    "runtime": {
        "format": "hosim.runtime/1",
        "name": "mine",
        "options": {"fused": True},
        "speed": {"value": 0.8, "spread": 0.1},
    },
}


@pytest.mark.parametrize("name", KINDS)
def test_examples_of_the_formats_page(name):
    VALIDATORS[name].validate(EXAMPLES[name])
    assert VALIDATORS[name].schema["title"] == f"hosim.{name}/1"
    assert not VALIDATORS[name].is_valid(EXAMPLES[name] | {"format": "hosim.other/1"})
    assert not VALIDATORS[name].is_valid(EXAMPLES[name] | {"extra": 1})


@pytest.mark.parametrize("name", shipped.hardware())
def test_shipped_profiles(name):
    VALIDATORS["hardware"].validate(read(shipped.hardware_path(name), "hardware"))


@given(cases(max_streams=2, fabrics=True, measured=False), RESULTS)
def test_drawn_files(case, result):
    graph, hardware, plan = case
    VALIDATORS["workload"].validate(workload_to_dict(graph))
    VALIDATORS["hardware"].validate(hardware_to_dict(hardware))
    VALIDATORS["plan"].validate(plan_to_dict(plan))
    VALIDATORS["result"].validate(result_to_dict(result))
    VALIDATORS["comparison"].validate(comparison_to_dict([result]))


@given(st.sampled_from(["80", "80 Gb", "80 GB/s", "GiB", "-1 B", "1 kib"]))
def test_a_size_has_its_unit(text):
    data = json.loads(json.dumps(EXAMPLES["hardware"]))
    data["tiers"]["hbm"]["capacity"] = text
    assert not VALIDATORS["hardware"].is_valid(data)
    data["tiers"]["hbm"]["capacity"] = " 1.5e1 GiB "
    assert VALIDATORS["hardware"].is_valid(data)


def test_unknown_name():
    with pytest.raises(InputError, match=r"unknown format 'plans'; did you mean 'plan'\?"):
        hosim.io.schema("plans")
