# Two images of one profile: NVIDIA's Triton with the profile's model repository, and the gateway with
# the target's tokenizer.
#
#   docker build --build-arg PROFILE=profiles/embedded.yaml --tag tandem:0.1.0 .
#   docker run --gpus all --shm-size 1g --publish 127.0.0.1:8000-8002:8000-8002 tandem:0.1.0
#
#   docker build --build-arg PROFILE=profiles/embedded.yaml --target gateway \
#       --tag tandem-gateway:0.1.0 .
#   docker run --publish 127.0.0.1:8080:8080 tandem-gateway:0.1.0 --url triton.example:8001

# The last image with TensorRT engines (TensorRT-LLM 1.2.1), and the oldest to use: in earlier ones,
# calls between models could deadlock.
ARG BASE=nvcr.io/nvidia/tritonserver:26.07-trtllm-python-py3

FROM python:3.12-slim-bookworm AS render
WORKDIR /tandem
COPY . .
RUN python -m venv /venv && /venv/bin/pip install --no-cache-dir --editable '.[gateway]'
ARG PROFILE=profiles/embedded.yaml
RUN /venv/bin/tandem render --profile "${PROFILE}" --output /repository
# It compiles guides. It lies beside the loop's model, where no other model sees it: TensorRT-LLM in
# the image has another version for itself.
RUN /venv/bin/pip install --no-cache-dir --no-deps --target /guides 'llguidance>=1.9,<2' \
    && for version in /repository/*/1; do \
        if [ -d "$version/tandem/guides" ] && [ -d "$version/tokenizer" ]; then \
            cp -r /guides/. "$version"; fi; done
# The tokenizer's folder, whatever the profile calls its models.
RUN mkdir /tokenizer && cp -r /repository/*/1/tokenizer/. /tokenizer

# Without PyTorch, in the Python that it was installed with.
FROM python:3.12-slim-bookworm AS gateway
COPY --from=render /venv /venv
COPY --from=render /tandem /tandem
COPY --from=render /tokenizer /tokenizer
USER 1000:1000
EXPOSE 8080
# http.client uses no proxy.
HEALTHCHECK --interval=60s --timeout=30s --start-period=15m --retries=3 CMD [ \
    "python3", "-c", "import http.client, sys; \
    gateway = http.client.HTTPConnection('127.0.0.1', 8080, timeout=25); \
    gateway.request('GET', '/health'); sys.exit(gateway.getresponse().status != 200)"]
# All addresses of the container; --publish decides who reaches them.
ENTRYPOINT ["/venv/bin/tandem", "gateway", "--address", "0.0.0.0", "--tokenizer", "/tokenizer"]
CMD ["--url", "server:8001"]

FROM ${BASE}
COPY --from=render /repository /repository
COPY deploy/helm/tandem/files/health.py /health.py
# Python models look for imports in the working directory first: nothing may be there.
WORKDIR /empty
# triton-server, by number so that Kubernetes sees it is not root
USER 1000:1000
# for what PyTorch and CUDA compile
ENV HOME=/tmp
EXPOSE 8000 8001 8002
# One token: Triton's health page stays green over model processes that died. The names are those of
# the profile's entry that answers plain `infer`, and of its target.
ENV TANDEM_ENTRY=bls TANDEM_TARGET=target
HEALTHCHECK --interval=60s --timeout=30s --start-period=15m --retries=3 CMD [ \
    "python3", "/health.py", "alive", "--patience=25"]
# Of whichever rendered repository is mounted here.
CMD ["sh", "/repository/serve.sh"]
