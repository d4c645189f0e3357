"""What users do with a model, a loss, an optimizer and torch: each habit has eager's bits under
``hosim.offload``, or is refused in one line.
"""

from __future__ import annotations

import os
from collections import Counter

import pytest

torch = pytest.importorskip("torch")

import habits_of_models  # noqa: E402, F401
import habits_of_programs  # noqa: E402, F401
import habits_of_scripts  # noqa: E402, F401
import habits_of_state  # noqa: E402, F401
import habits_of_steps  # noqa: E402, F401
import habits_of_turns  # noqa: E402, F401
from habits import HABITS, Eager, offloaded, plain  # noqa: E402

from hosim.errors import InputError  # noqa: E402

FOUND: Counter[str] = Counter()

QUICK = (
    *("a_cached_function", "a_context_variable", "a_file", "a_module_of_settings"),
    *(
        "a_thread_local",
        "a_schedule_by_the_learning_rate",
        "a_global_that_appears",
        "through_a_weak_reference",
    ),
    *("an_operator_get", "a_function_of_torch_replaced", "an_attribute_over_one_of_the_class"),
    *("a_forward_of_the_class", "another_class", "a_counter_that_appears", "a_size_that_is_kept"),
    *("what_the_model_kept_is_read", "what_the_loss_logged_is_read", "a_parameter_replaced"),
    *("mode_attention_by_another_kernel", "mode_a_default_dtype", "mode_autocast_of_another_type"),
    *("mode_saved_tensors_halved", "inputs_a_list", "inputs_expanded"),
    *("optimizer_with_an_attribute", "optimizer_that_decays", "an_optimizer_with_slow_weights"),
    *("a_view_of_a_mapping", "a_descriptor", "an_array_of_numbers", "a_generator_forked_within"),
    *("a_hook_of_several_gradients", "a_traced_part", "a_base_class_replaced"),
    *("the_code_of_a_function_replaced", "a_default_argument_replaced"),
    *("no_gradients_around_a_step", "results_are_kept_over_steps", "parameters_in_a_list"),
    *("an_attribute_by_a_built_name", "attributes_by_names_in_a_tuple", "attributes_by_vars"),
    *("an_attribute_by_a_getter_of_a_built_name", "an_attribute_by_a_text"),
    *("an_attribute_of_an_object_that_had_none", "a_count_under_a_threshold"),
    *("a_context_manager_that_reads_a_global", "a_dispatched_function"),
    *("the_environment_by_getenv", "a_column_of_a_frame", "a_polynomial_of_numpy"),
    *("a_number_that_processes_share", "a_file_that_appears", "a_log_in_memory"),
    *("a_rate_that_its_scheduler_knows", "a_look_that_is_caught"),
    *("a_look_that_is_caught_in_inference", "whether_it_is_compiled_is_asked"),
    *("an_encoder_in_eval_mode", "some_rows_learn_nothing", "images_in_channels_last_later"),
    *("one_weight_cast_for_two_uses", "autocast_over_all_steps", "a_logger"),
    *("a_constant_of_a_class_in_c", "an_attribute_of_what_numpy_can_read"),
    "a_file_that_may_be_read",
)
"""One habit of each kind; the others are long."""


def results(habit, go):
    torch.manual_seed(7)
    for value in habit(go):
        yield plain(value)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[pytest.mark.long] * (n not in QUICK)) for n in HABITS]
)
def test_a_habit_is_eagers_or_refused(name):
    wanted, got = list(results(HABITS[name], Eager)), []
    try:
        got.extend(results(HABITS[name], offloaded))
        FOUND["equal"] += 1
    except InputError as error:
        assert "\n" not in str(error)
        FOUND["refused"] += 1
        wanted = wanted[: len(got)]
    assert got == wanted


@pytest.mark.long
def test_more_than_half_of_the_habits_are_eagers():
    if FOUND.total() < len(HABITS) or "PYTEST_XDIST_WORKER" in os.environ:
        pytest.skip("the habits were not all tried here")
    assert FOUND["refused"] <= 0.5 * len(HABITS)
