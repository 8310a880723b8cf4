# Two images for one profile: NVIDIA's Triton with the profile's model repository, and the gateway with
# the target's tokenizer.
#
#   docker build --build-arg PROFILE=tandem/profiles/embedded.yaml --tag tandem:0.1.0 .
#   docker run --gpus all --shm-size 1g --publish 127.0.0.1:8000-8002:8000-8002 tandem:0.1.0
#
#   docker build --build-arg PROFILE=tandem/profiles/embedded.yaml --target gateway \
#       --tag tandem-gateway:0.1.0 .
#   docker run --publish 127.0.0.1:8080:8080 tandem-gateway:0.1.0 --url triton.example:8001

# The last image with TensorRT engines (TensorRT-LLM 1.2.1). Don't use earlier images: calls between
# models can deadlock in them.
ARG BASE=nvcr.io/nvidia/tritonserver:26.07-trtllm-python-py3

# Files that rendering reads outside the build folder: --build-context models=DIR replaces this.
FROM scratch AS models

FROM python:3.12-slim-bookworm AS render
WORKDIR /tandem
COPY . .
RUN python -m venv /venv && /venv/bin/pip install --no-cache-dir --editable '.[gateway]'
ARG PROFILE=tandem/profiles/embedded.yaml
RUN --mount=type=bind,from=models,target=/models \
    /venv/bin/tandem render --profile "${PROFILE}" --output /repository
# llguidance compiles guides. It is installed next to the loop's model.py, where no other model imports
# it, because TensorRT-LLM in the image needs another version.
RUN /venv/bin/pip install --no-cache-dir --no-deps --target /guides 'llguidance>=1.9,<2' \
    && for version in /repository/*/1; do \
        if [ -d "$version/tandem/guides" ] && [ -d "$version/tokenizer" ]; then \
            cp -r /guides/. "$version"; fi; done
# The profile may rename models, so find the tokenizer's folder with a wildcard.
RUN mkdir /tokenizer && cp -r /repository/*/1/tokenizer/. /tokenizer

# The gateway, in the same Python as above, without PyTorch.
FROM python:3.12-slim-bookworm AS gateway
COPY --from=render /venv /venv
COPY --from=render /tandem /tandem
COPY --from=render /tokenizer /tokenizer
USER 1000:1000
EXPOSE 8080
# http.client ignores the proxies that the environment sets.
HEALTHCHECK --interval=60s --timeout=30s --start-period=15m --retries=3 CMD [ \
    "python3", "-c", "import http.client, sys; \
    gateway = http.client.HTTPConnection('127.0.0.1', 8080, timeout=25); \
    gateway.request('GET', '/health'); sys.exit(gateway.getresponse().status != 200)"]
# Listen on all addresses of the container. `docker run --publish` controls access.
ENTRYPOINT ["/venv/bin/tandem", "gateway", "--address", "0.0.0.0", "--tokenizer", "/tokenizer"]
CMD ["--url", "server:8001"]

FROM ${BASE}
COPY --from=render /repository /repository
COPY deploy/helm/tandem/files/health.py /health.py
# Python models search the working directory for imports first, so it must be empty.
WORKDIR /empty
# The user triton-server, by number so that Kubernetes can verify that it isn't root.
USER 1000:1000
# PyTorch and CUDA cache compiled code here.
ENV HOME=/tmp
EXPOSE 8000 8001 8002
# Request one token, because Triton's health endpoint doesn't notice dead model processes. Set the
# names of the profile's entry for plain `infer` and of its target.
ENV TANDEM_ENTRY=bls TANDEM_TARGET=target
HEALTHCHECK --interval=60s --timeout=30s --start-period=15m --retries=3 CMD [ \
    "python3", "/health.py", "alive", "--patience=25"]
# The start script of the repository, which a volume may replace.
CMD ["sh", "/repository/serve.sh"]
