# One image: the server with its engine (`serve`, the default) and the generator of Envoy's configuration (`gateway config`).
#
#   docker build -t glimpse .
#
# torch is the CPU build. For another, name the index that has it:
#
#   docker build -t glimpse:cuda --build-arg TORCH_INDEX=<an index of CUDA builds> .

FROM python:3.11-slim AS build
ARG TORCH_INDEX
WORKDIR /app
COPY . .
# The variable must not be set where the argument is empty: that would be an index too. The base image's Python makes
# the environment, and the next stage has the same Python at the same place.
RUN --mount=type=cache,target=/root/.cache/pip \
    ${TORCH_INDEX:+env GLIMPSE_TORCH_CPU_INDEX="$TORCH_INDEX"} python tools/set_up.py
# The engine's and media's kernels are compiled here, so that the image needs no compiler; they run on whatever x86-64 it
# is started on. Other processors have none.
RUN if [ "$(uname -m)" = x86_64 ]; then \
    apt-get update && apt-get install --yes --no-install-recommends g++ \
    && .venv/bin/python -m glimpse.engine.native.compile_kernels --package \
    && .venv/bin/python -m glimpse.media.native.compile_resampler --package; \
    fi
# Files may come with modes that only their owner can read.
RUN chmod -R a+rX .

FROM python:3.11-slim
# The folders are volumes for models of the Hugging Face hub and for Envoy's configuration; a new volume takes the owner
# that the folder has here.
RUN useradd --uid 10001 --create-home glimpse \
    && install -d -o glimpse -g glimpse /home/glimpse/.cache/huggingface /gateway-config
COPY --from=build /app /app
WORKDIR /app
USER 10001
ENV PATH=/app/.venv/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    GLIMPSE_HOST=0.0.0.0 \
    GLIMPSE_METRICS_HOST=0.0.0.0
EXPOSE 50051 9090
HEALTHCHECK --interval=10s --timeout=5s --start-period=5m --start-interval=1s \
    CMD ["python", "-m", "glimpse.gateway", "health"]
ENTRYPOINT ["glimpse"]
CMD ["serve"]
