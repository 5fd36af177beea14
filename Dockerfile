# One image: the server with its engine (`serve`, the default) and the generator of Envoy's configuration (`gateway config`).
#
#   docker build -t glimpse .                                  # torch for CPUs
#   docker build -t glimpse:cuda --build-arg VARIANT=cuda .    # torch for NVIDIA GPUs
#
# `dependencies` is made again only where a dependency changes; a change of our sources repeats `wheel`, without torch, and
# the last command.

ARG VARIANT=cpu
# The tag as it was in August 2026, for all processors. The digest is that of public records: this file was written where
# no registry can be reached. For a newer one: docker buildx imagetools inspect python:3.11-slim-trixie
ARG PYTHON=python:3.11.16-slim-trixie@sha256:9c900dea9e8fb7e16277c179b555cc72d29a352dbc33cff48ad5a0412fd5bfc7

FROM ${PYTHON} AS requirements
WORKDIR /build
COPY pyproject.toml constraints.txt ./
COPY tools/image_requirements.py tools/
RUN mkdir /requirements && python tools/image_requirements.py /requirements && cp constraints.txt /requirements/

FROM ${PYTHON} AS environment
RUN python -m venv /opt/glimpse
ENV PATH=/opt/glimpse/bin:$PATH PIP_DISABLE_PIP_VERSION_CHECK=1
COPY --from=requirements /requirements /requirements
WORKDIR /requirements

# torch alone comes from an index of its own, which need not have the versions of its dependencies that we pin. They come
# with all others, and this build satisfies what those require.
FROM environment AS dependencies-cpu
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
RUN --mount=type=cache,target=/root/.cache/pip \
    pip install --no-deps --index-url "$TORCH_INDEX" --requirement torch.txt \
    && pip install --constraint constraints.txt --requirement requirements.txt

# The ordinary index has the CUDA build.
FROM environment AS dependencies-cuda
RUN --mount=type=cache,target=/root/.cache/pip \
    pip install --constraint constraints.txt --requirement requirements.txt

FROM dependencies-${VARIANT} AS dependencies

# Kernels are compiled here, so that the image needs no compiler; they run on whatever processor of its
# architecture it is started on.
FROM ${PYTHON} AS wheel
RUN apt-get update && apt-get install --yes --no-install-recommends g++ && rm -rf /var/lib/apt/lists/*
WORKDIR /build
COPY . .
RUN export PYTHONPATH=src \
    && python -m glimpse.engine.worker.native.compile_kernels --package \
    && python -m glimpse.media.native.compile_resampler --package
# Files may come with modes that only their owner can read.
RUN chmod -R a+rX .
RUN --mount=type=cache,target=/root/.cache/pip pip wheel --no-deps --wheel-dir /dist .

FROM ${PYTHON} AS runtime-cpu

# Triton compiles its launchers where it runs.
FROM ${PYTHON} AS runtime-cuda
RUN apt-get update && apt-get install --yes --no-install-recommends gcc libc6-dev && rm -rf /var/lib/apt/lists/*

FROM runtime-${VARIANT}
# The folders are volumes for models of the Hugging Face hub and for Envoy's configuration; a new volume takes the owner
# that the folder has here.
RUN useradd --uid 10001 --create-home glimpse \
    && install -d -o glimpse -g glimpse /home/glimpse/.cache/huggingface /gateway-config
COPY --from=dependencies /opt/glimpse /opt/glimpse
ENV PATH=/opt/glimpse/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    GLIMPSE_HOST=0.0.0.0 \
    GLIMPSE_METRICS_HOST=0.0.0.0
RUN --mount=type=bind,from=wheel,source=/dist,target=/dist \
    pip install --no-cache-dir --no-index --no-deps /dist/*.whl
USER 10001
WORKDIR /home/glimpse
EXPOSE 50051 9090
HEALTHCHECK --interval=10s --timeout=5s --start-period=5m --start-interval=1s \
    CMD ["python", "-m", "glimpse.gateway", "health"]
ENTRYPOINT ["glimpse"]
CMD ["serve"]
