# STARK with a CUDA compiler. The image's CUDA and torch's must have the same major version.
#
#     docker build -t stark .
#     docker run --gpus all -e ANTHROPIC_API_KEY -v "$PWD/runs:/project/runs" -v "$PWD/KernelBench:/project/KernelBench" \
#         stark bench --grid configs/table-1.toml --kernelbench KernelBench --model anthropic:claude-sonnet-4-6
#     docker run --gpus all --entrypoint python -v "$PWD/KernelBench:/project/KernelBench" \
#         stark benchmarks/studies/baselines.py --kernelbench KernelBench --subset representative
ARG CUDA=13.0.1
FROM nvidia/cuda:${CUDA}-devel-ubuntu24.04

ARG TORCH=2.11.0
RUN apt-get update && apt-get install --yes --no-install-recommends g++ git python3-dev python3-venv \
    && rm -rf /var/lib/apt/lists/*
RUN python3 -m venv /opt/stark
ENV PATH=/opt/stark/bin:$PATH
RUN pip install --no-cache-dir torch==${TORCH}

WORKDIR /project
COPY pyproject.toml README.md LICENSE ./
COPY src src
COPY configs configs
COPY examples examples
COPY benchmarks benchmarks
RUN pip install --no-cache-dir '.[local,report,parquet]'

ENTRYPOINT ["stark"]
CMD ["--help"]
