"""Tables of measured kernel times, in the layouts that there are."""

import gzip
from pathlib import Path

import numpy as np
import pytest
from rendered import facts

from hosim.analysis.costmodel.kernels import NO_WINDOW
from hosim.base.files import csv_line
from hosim.errors import InputError
from hosim.io.importers.recordings import read_kernel_tables, tables_text

SERVING = Path(__file__).parents[3] / "shared" / "data" / "serving"

MIXTURE = "kernel,dtype,tokens,top,experts,ranks,tensor,distribution,hidden,intermediate,latency_us\nmoe,fp16,{},{},{},{},{},{},64,64,1\n"


def written(tmp_path, text, name="table.csv"):
    path = tmp_path / name
    path.write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
    return path


def only(path):
    (table,) = read_kernel_tables(path)
    return table


def test_products(tmp_path) -> None:
    text = "machine,dtype,m,n,k,latency_us\na,float16,1,2,3,4.5\nb,int8_wo,4,5,6,7\na,float16,7,8,9,10\n"
    first, second = read_kernel_tables(written(tmp_path, text, "gemm.csv.gz"))
    assert (first.machine, first.kernel, first.dtype, len(first)) == ("a", "gemm", "fp16", 2)
    assert (first.sizes["m"].tolist(), first.latency_us.tolist()) == ([1, 7], [4.5, 10])
    assert (second.machine, second.dtype, second.sizes["k"].tolist()) == ("b", "int8_weights", [6])


def test_aiconfigurators_own_files_have_longer_names_and_milliseconds(tmp_path) -> None:
    text = (
        "framework,version,device,op_name,kernel_source,gemm_dtype,m,n,k,latency\nTRTLLM,1.0,NVIDIA "
        "H200,gemm,default,fp8,1,2,3,0.25\n"
    )
    table = only(written(tmp_path, text))
    assert (table.machine, table.kernel, table.dtype, table.latency_us.tolist()) == (
        "NVIDIA H200",
        "gemm",
        "fp8",
        [250.0],
    )


def test_attention_counts_queries_or_keys(tmp_path) -> None:
    text = (
        "machine,op,dtype,kv_cache_dtype,batch,isl,step,heads,kv_heads,head_dim,latency_us\n"
        "a,context,float16,float16,2,64,0,8,4,128,1\na,generation,float16,fp8,2,1,63,8,4,128,2\n"
    )
    context, generation = read_kernel_tables(written(tmp_path, text))
    assert (context.kernel, context.dtype, context.sizes["queries"].tolist()) == (
        "context_attention",
        "fp16",
        [64],
    )
    assert (generation.kernel, generation.dtype, generation.sizes["keys"].tolist()) == (
        "generation_attention",
        "fp16_fp8_cache",
        [64],
    )


def test_latent_attention(tmp_path) -> None:
    head = "machine,op,dtype,kv_cache_dtype,heads,batch,isl,tp,step,latency_us\n"
    text = (
        head
        + "a,context_mla,float16,fp8,64,1,16,1,0,18\na,generation_mla,float16,fp8,64,1,1,1,31,9\n"
    )
    context, generation = read_kernel_tables(written(tmp_path, text))
    assert (context.kernel, context.sizes["queries"].tolist()) == ("context_latent", [16])
    assert (generation.kernel, generation.sizes["keys"].tolist()) == ("latent_attention", [32])


def test_mixtures_by_distribution(tmp_path) -> None:
    row = "float16,8,64,32,2,4,1,2,{},5\n"
    text = (
        "dtype,tokens,hidden,intermediate,topk,experts,moe_tp,moe_ep,distribution,latency_us\n"
        + row.format("balanced")
        + row.format("power_law_1.2")
    )
    even, uneven = read_kernel_tables(written(tmp_path, text))
    assert (even.distribution, uneven.distribution) == ("uniform", "power_law_1.2")
    assert {name: values.tolist() for name, values in even.sizes.items()} == {
        "tokens": [8], "hidden": [64], "intermediate": [32], "top": [2], "experts": [4], "tensor": [1], "ranks": [2],
    }  # fmt: skip


def test_collectives_count_bytes_and_know_who_ran_them(tmp_path) -> None:
    text = (
        "machine,library,op,dtype,gpus,message_elements_or_bytes,latency_us\n"
        "a,TRTLLM,all_reduce,float16,2,1024,3\na,TRTLLM,all_reduce,float16,2,2097152,50\na,NCCL,all_reduce,int8,4,1024,9\na,NCCL,alltoall,half,4,1024,9\n"
    )
    tables = {table.kernel: table for table in read_kernel_tables(written(tmp_path, text))}
    assert tables["custom_all_reduce"].sizes["bytes"].tolist() == [2048]
    assert tables["all_reduce"].sizes["bytes"].tolist() == [2 * 2097152, 1024]
    assert tables["all_to_all"].sizes["ranks"].tolist() == [4]


def test_hosims_own_layout_has_any_class(tmp_path) -> None:
    text = "kernel,dtype,m,n,k,ranks,bytes,latency_us\ngemm,bfloat16,1,2,3,,,4\nall_gather,fp16,,,,8,4096,11\n"
    gemm, gather = read_kernel_tables(written(tmp_path, text))
    assert (gemm.kernel, gemm.dtype, gemm.sizes["n"].tolist()) == ("gemm", "fp16", [2])
    assert (gather.kernel, gather.sizes["bytes"].tolist(), gather.latency_us.tolist()) == (
        "all_gather",
        [4096],
        [11],
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a,b\n1,2\n", "line 1: expected a column latency_us"),
        ("a,latency_us\n1,2\n", "line 1: unknown columns"),
        (
            "dtype,m,n,k,latency_us\nfloat16,1,2,x,4\n",
            "line 2: expected a number of at least 1 as k",
        ),
        (
            "dtype,m,n,k,latency_us\nfloat16,1,2,3,4\nfloat16,1,2,3,0\n",
            "line 3: expected a number of at least 1e-09 as latency_us",
        ),
        ("dtype,m,n,k,latency_us\nfp7,1,2,3,4\n", "line 2: unknown dtype 'fp7'; expected one of"),
        ("kernel,dtype,m,latency_us\ngemm,fp16,1,2\n", "line 1: rows of gemm need a column n"),
        ("m,m,latency_us\n1,1,1\n", "line 1: a column is listed twice"),
        ('"', "expected a line of columns and a line for each measured time"),
        (
            "dtype,m,n,k,latency_us\nfp16,1,2,3,4\n\nfp16,1,2,3,4\n",
            "line 3: expected 5 values, got 0",
        ),
        (
            "dtype,m,n,k,latency_us\nfp16,1,2,3,4\nfp16,1,2.5,3,4\n\n",
            "line 3: expected a whole number of at least 1 as n",
        ),
        (
            "kernel,dtype,ranks,bytes,latency_us\nall_gather,fp16,0,8,1\n",
            "line 2: expected a whole number of at least 1 as ranks",
        ),
        (MIXTURE.format(8, 5, 4, 1, 1, ""), "line 2: expected top of at most experts"),
        (MIXTURE.format(8, 2, 4, 8, 1, ""), "line 2: expected ranks of at most experts"),
        (MIXTURE.format(8, 2, 4, 1, 65, ""), "line 2: expected tensor of at most intermediate"),
        (MIXTURE.format(8, 2, 99999, 1, 1, ""), "line 2: expected at most 16,384 experts"),
        (
            MIXTURE.format(8, 2, 4, 1, 1, "zipf"),
            "line 2: unknown distribution 'zipf': expected uniform, zipf_A",
        ),
    ],
)
def test_what_is_wrong_with_a_file(tmp_path, text, message) -> None:
    with pytest.raises(InputError) as error:
        read_kernel_tables(written(tmp_path, text))
    assert message in str(error.value)


def test_parts_of_a_table(tmp_path) -> None:
    table = only(written(tmp_path, "dtype,m,n,k,latency_us\nfp16,1,2,3,4\nfp16,5,6,7,8\n"))
    assert table.part(np.array([False, True])).sizes["m"].tolist() == [5]
    assert table.part(np.array([1, 0])).latency_us.tolist() == [8, 4]


def test_a_file_is_unpacked_once(tmp_path) -> None:
    inner = gzip.compress(b"dtype,m,n,k,latency_us\nfp16,1,2,3,4\n")
    path = tmp_path / "twice.csv.gz"
    path.write_bytes(gzip.compress(inner))
    with pytest.raises(InputError, match="expected UTF-8 text"):
        read_kernel_tables(path)


@pytest.mark.parametrize("machine", ["=1+1", 'a "b", c', "two\nlines", "'quoted", "plain"])
def test_names_of_machines_come_back_and_are_text_for_a_spreadsheet(tmp_path, machine) -> None:
    (tmp_path / "a.csv").write_text(
        csv_line(("machine", "dtype", "m", "n", "k", "latency_us"))
        + csv_line((machine, "fp16", 1, 2, 3, 4))
    )
    table = only(tmp_path / "a.csv")
    text = tables_text([table])
    assert table.machine == machine == only(written(tmp_path, text, "b.csv")).machine
    assert "\n=" not in text


def in_parquet(path, **columns):
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    pandas.DataFrame(columns).to_parquet(path, engine="pyarrow", index=False)
    return path


GEMMS = {
    "framework": ["vLLM"] * 3,
    "device": ["NVIDIA H100"] * 3,
    "op_name": ["gemm"] * 3,
    "kernel_source": ["default"] * 3,
    "gemm_dtype": ["bfloat16", "bfloat16", "nvfp4"],
    "m": [1, 16, 1],
    "n": [128, 256, 128],
    "k": [64, 64, 64],
    "latency": [0.0041, 0.0052, 0.003],
}


def test_a_table_in_parquet_is_that_in_csv(tmp_path):
    """Milliseconds of aiconfigurator; rows in a dtype without kernels are left out, and said."""
    told = []
    (table,) = read_kernel_tables(in_parquet(tmp_path / "gemm_perf.parquet", **GEMMS), told.append)
    (tmp_path / "gemm.csv").write_text(
        csv_line([*GEMMS])
        + "".join(csv_line([values[row] for values in GEMMS.values()]) for row in range(2))
    )
    (same,) = read_kernel_tables(tmp_path / "gemm.csv")
    assert tables_text([table]) == tables_text([same])
    assert len(table) == 2
    assert [facts(line, "nvfp4") for line in told] == ["1, nvfp4"]


def test_of_launched_and_captured_kernels_the_captured_ones_count(tmp_path):
    columns = {
        "device": ["A"] * 2,
        "op_name": ["all_reduce"] * 2,
        "kernel_source": ["custom_graph", "custom_eager"],
        "allreduce_dtype": ["bfloat16"] * 2,
        "num_gpus": [2, 2],
        "message_size": [128, 128],
        "latency": [0.005, 0.042],
    }
    (table,) = read_kernel_tables(in_parquet(tmp_path / "a.parquet", **columns))
    assert table.latency_us.tolist() == [5.0]


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"op_name": ["mla_context_module"] * 3}, "whole modules"),
        ({"m": [0, 1, 1]}, "at least 1 as m"),
        ({"gemm_dtype": ["nvfp4"] * 3}, "unknown dtype 'nvfp4'"),
        ({"latency": ["x", "1", "2"]}, "as latency"),
    ],
)
def test_what_is_wrong_in_parquet_is_named(tmp_path, changed, words):
    with pytest.raises(InputError, match=words):
        read_kernel_tables(in_parquet(tmp_path / "a.parquet", **(GEMMS | changed)))


def test_a_damaged_table_in_parquet_is_refused(tmp_path):
    path = tmp_path / "context_attention_perf.parquet"
    path.write_bytes(b"PAR1" + bytes(8) + b"PAR1")
    with pytest.raises(InputError, match="is no Parquet file"):
        read_kernel_tables(path)


def test_layers_of_one_model_are_no_kernels(tmp_path):
    (tmp_path / "dense.csv").write_text("layer,tokens,time_us\nact_fn,1,2.592\n")
    with pytest.raises(InputError, match="--iterations"):
        read_kernel_tables(tmp_path / "dense.csv")


def test_layers_of_a_model_are_its_products_and_attention(tmp_path) -> None:
    """Of llama-3.1-8b on two devices: 16 of 32 heads and 4 of 8 heads of keys of 128, 7,168 of
    14,336 columns of each half; the head has half of 128,256.
    """
    (tmp_path / "dense.csv").write_text(
        "layer,tokens,time_us\nqkv_proj,1,5\nqkv_proj,8,6\nact_fn,1,2\ngate_up_proj,8,9\n"
    )
    (tmp_path / "head.csv").write_text("layer,sequences,time_us\nlm_head,4,900\nsampler,4,20\n")
    (tmp_path / "attention.csv").write_text(
        "prefill_chunk,kv_prefill,n_decode,kv_decode,time_us\n0,0,2,64,9\n32,16,0,0,20\n32,0,2,64,25\n"
    )
    model, said = {"model": "llama-3.1-8b", "tensor": 2}, []
    qkv, up = read_kernel_tables(tmp_path / "dense.csv", said.append, model)
    assert [list(qkv.sizes[name]) for name in "mnk"] == [[1, 8], [3072, 3072], [4096, 4096]]
    assert (list(qkv.latency_us), list(up.sizes["n"])) == ([5, 6], [14336])
    (head,) = read_kernel_tables(tmp_path / "head.csv", said.append, model)
    assert [head.sizes[name][0] for name in "mnk"] == [4, 64128, 4096]
    prompts, steps = read_kernel_tables(tmp_path / "attention.csv", said.append, model)
    assert {name: of[0] for name, of in prompts.sizes.items()} == {
        "batch": 1, "queries": 32, "before": 16, "heads": 16, "kv_heads": 4, "width": 128,
        "window": NO_WINDOW,
    }  # fmt: skip
    assert {name: of[0] for name, of in steps.sizes.items()} == {
        "batch": 2, "keys": 64, "heads": 16, "kv_heads": 4, "width": 128,
    }  # fmt: skip
    assert [line.rpartition(": ")[2] for line in said[:2]] == ["act_fn", "sampler"]
    assert facts(said[2]).startswith("1")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("layer,time_us\nqkv_proj,5\n", "tokens or sequences"),
        ("layer,tokens,time_us\nact_fn,1,5\n", "no layer that is a product"),
        ("layer,tokens,time_us\nqkv_proj,many,5\n", "expected a number"),
    ],
)
def test_layers_that_say_nothing_are_refused(tmp_path, text: str, words: str) -> None:
    (tmp_path / "dense.csv").write_text(text)
    with pytest.raises(InputError, match=words):
        read_kernel_tables(tmp_path / "dense.csv", model={"model": "gpt2-xl"})


def test_the_layers_of_a_4090_are_read() -> None:
    folder = SERVING / "rtx4090_llama-3.1-8b"
    if not folder.is_dir():
        pytest.skip(f"no {folder}")
    found = read_kernel_tables(folder / "kernels_dense.csv.gz", model={"model": "llama-3.1-8b"})
    assert sorted({int(table.sizes["n"][0]) for table in found}) == [4096, 6144, 28672]
    assert [len(table) for table in found] == [152] * 4
