"""The metrics page: what is read of it, and that nothing that is not there is ever taken for zero."""

import pytest

from extproc.decision.exposition import LOAD, Page, Series, read_page
from tests.unit.decision.watched import recorded

RUNNING = b'vllm:num_requests_running{engine="0",model_name="m"} 2.0\n'
WAITING = b'vllm:num_requests_waiting{engine="0",model_name="m"} 1.0\n'


def values(body: bytes) -> dict[Series, float]:
    (engine,) = read_page(body).engines
    return dict(engine.values)


def test_a_real_page_gives_every_series_of_its_engine():
    page = recorded("busy_1")
    (engine,) = page.engines
    assert (page.started_at_s, engine.engine, engine.model, page.in_flight) == (1764421200.53, "0", "Qwen/Qwen3-8B", 2)
    assert dict(engine.values) == {
        Series.RUNNING: 2,
        Series.WAITING: 0,
        Series.STEPS: 48213,
        Series.STEP_TOKENS: 91044,
        Series.GENERATED_TOKENS: 40118,
        Series.PROMPT_TOKENS: 50926,
        Series.FINISHED_REQUESTS: 311,
        Series.PREEMPTIONS: 0,
        Series.PREFIX_CACHE_QUERIES: 50926,
        Series.KV_CACHE_USE: 0.1834,
        Series.AWAKE: 1,
    }


def test_each_engine_is_read_by_itself():
    page = recorded("two_engines_1")
    assert [(engine.engine, engine.values[Series.RUNNING]) for engine in page.engines] == [("0", 3), ("1", 5)]
    assert page.in_flight == 8


@pytest.mark.parametrize(
    "line",
    [
        b'vllm:num_requests_running{engine="0",model_name="m"} 2',
        b'vllm:num_requests_running{model_name="m",engine="0"} 2.0',
        b'vllm:num_requests_running{pod="a",model_name="m",node="x",engine="0"} 2.0e+00',
        b'vllm_num_requests_running{engine="0",model_name="m"} 2.0',
        b'vllm:num_requests_running{engine="0",model_name="m",} 2.0',
        b'vllm:num_requests_running{ engine = "0" , model_name = "m" }\t2.0',
        b'vllm:num_requests_running{engine="0",model_name="m"} 2.0 1764421200000',
        b'vllm:num_requests_running{engine="0",model_name="m",note="a} 7 \\" {b"} 2.0',
        b'vllm:num_requests_running{engine="0",model_name="m"} 2.0\r',
    ],
)
def test_any_label_order_extra_labels_and_both_spellings_read_the_same(line: bytes):
    (engine,) = read_page(line + b"\n").engines
    assert (engine.engine, engine.model, dict(engine.values)) == ("0", "m", {Series.RUNNING: 2.0})


@pytest.mark.parametrize(
    ("name", "series"),
    [
        (b"gpu_cache_usage_perc", Series.KV_CACHE_USE),
        (b"gpu_prefix_cache_queries_total", Series.PREFIX_CACHE_QUERIES),
        (b"gpu_prefix_cache_queries", Series.PREFIX_CACHE_QUERIES),
        (b"prompt_tokens", Series.PROMPT_TOKENS),
        (b"prompt_tokens_total", Series.PROMPT_TOKENS),
    ],
)
def test_hl_07_names_of_other_versions_are_known(name: bytes, series: Series):
    assert values(b"vllm:" + name + b'{model_name="m"} 0.5\n') == {series: 0.5}


def test_series_without_labels_belong_to_a_nameless_engine():
    (engine,) = read_page(b"vllm:num_requests_running 3\n").engines
    assert (engine.engine, engine.model) == ("", "")


def test_samples_that_differ_in_further_labels_only_are_added_up():
    text = "".join(f'vllm:request_success_total{{engine="0",finished_reason="{r}"}} 2\n' for r in ("stop", "length", "abort"))
    assert values(text.encode()) == {Series.FINISHED_REQUESTS: 6}


def test_neighbouring_names_are_not_taken_for_ours():
    text = b"".join(
        b"vllm:" + name + b'{engine="0"} 1\n'
        for name in (
            b"num_requests_waiting_by_reason",
            b"iteration_tokens_total_bucket",
            b"generation_tokens_created",
            b"prompt_tokens_cached_total",
        )
    )
    assert read_page(text).engines == ()
    assert read_page(b"# HELP vllm:num_requests_running 5\nxvllm:num_requests_running 5\n").engines == ()


def test_only_the_awake_sample_of_the_sleep_state_counts():
    text = b'vllm:engine_sleep_state{engine="0",sleep_state="weights_offloaded"} 1\n' + RUNNING
    assert values(text) == {Series.RUNNING: 2}
    assert values(text + b'vllm:engine_sleep_state{engine="0",model_name="m",sleep_state="awake"} 0\n')[Series.AWAKE] == 0


@pytest.mark.parametrize("number", [b"NaN", b"+Inf", b"-Inf", b"", b"two", b"0x2"])
def test_a_value_that_is_no_finite_number_is_missing_not_zero(number: bytes):
    page = read_page(b'vllm:num_requests_running{engine="0",model_name="m"} ' + number + b"\n" + WAITING)
    assert page.missing == (Series.RUNNING,)


@pytest.mark.parametrize(
    "body",
    [b"", b"\n\n", b"<html>no</html>", b"\xff\xfe\x00", b'{"a": 1}', b"python_gc_objects_collected_total 1\n"],
)
def test_hl_07_a_page_without_engines_misses_the_load(body: bytes):
    page = read_page(body)
    assert (page.engines, page.missing, page.model, page.started_at_s) == ((), LOAD, "", None)


def test_what_one_engine_of_two_does_not_have_is_named():
    page = read_page(RUNNING + WAITING + RUNNING.replace(b'"0"', b'"1"'))
    assert page.missing == (Series.WAITING,)


def test_a_start_time_is_known_only_where_it_is_one():
    one = b"process_start_time_seconds 1.76442120053e+09\n"
    assert read_page(one).started_at_s == 1764421200.53
    assert read_page(one + one).started_at_s == 1764421200.53
    assert read_page(one + b'process_start_time_seconds{pid="2"} 5\n').started_at_s is None
    assert read_page(b"process_start_time_seconds NaN\n").started_at_s is None


def test_escapes_in_labels_are_undone():
    (engine,) = read_page(b'vllm:num_requests_running{model_name="a\\\\b\\"c\\nd",engine="0"} 1\n').engines
    assert engine.model == 'a\\b"c\nd'


def test_the_first_model_that_is_named_is_the_model():
    assert read_page(b"vllm:num_requests_running 1\n" + RUNNING).model == "m"
    assert Page(started_at_s=None, engines=()).model == ""


def test_an_unfinished_quote_costs_its_line_and_no_other():
    page = read_page(b'vllm:num_requests_running{engine="0 2.0\n' + b'vllm:x{"' * 20_000 + b"\n" + WAITING)
    assert page.missing == (Series.RUNNING,)
