"""The kit for a GPU machine: it measures what hosim predicts from, and runs what hosim planned.

Three steps over one folder, which need not be on one machine: ``python -m hosim.gpu measure --out
DIR`` (GPU), ``plan --out DIR`` (anywhere), ``run --out DIR`` (GPU); ``all`` does the three. On the
GPU machine it needs torch, numpy and the standard library: where hosim is not installed, a copy of
its folder ``hosim`` does. Planning needs what ``pip install hosim`` brings.

The folder holds

- ``meta.json``: the machine, its software, and the sizes of the decoders; ``failed.json``: what
  failed and has not succeeded since;
- ``bandwidth.json``: the channels, and what copies and kernels lose beside one another;
- ``kernels.csv``: times of products and attention, for ``hosim import-kernels``;
- ``MODEL-MODE-LENGTH-SCHEME``: a decoder under a simple scheme of offloading: ``run.json`` (moves,
  step times, losses, peaks, clocks), ``trace.json.gz`` (Kineto, trimmed to what hosim reads) and
  ``memory.json.gz`` (the allocator's history);
- ``MODEL-MODE-LENGTH-step``: the same decoder as hosim captures it, with the time of each op;
- ``MODEL-MODE-LENGTH-plan-SHARE``: a plan of hosim for this share of the resident peak, its
  prediction, and its run;
- ``summary.json``: predictions beside measurements, and what failed.
"""
