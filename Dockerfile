# rollforge with bubblewrap, for verifiers and agents that run untrusted programs.
#   docker build -t rollforge .
#   docker run --rm -v "$PWD:/work" rollforge demo
FROM python:3.13-slim AS build
RUN apt-get update && apt-get install -y --no-install-recommends gcc libc6-dev && rm -rf /var/lib/apt/lists/*
COPY . /src
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /wheels /src

FROM python:3.13-slim
ARG EXTRAS=math,json-schema,hub,template,tokenizer
RUN apt-get update && apt-get install -y --no-install-recommends bubblewrap && rm -rf /var/lib/apt/lists/*
COPY --from=build /wheels /wheels
RUN pip install --no-cache-dir "$(ls /wheels/rollforge-*.whl)[$EXTRAS]" && rm -r /wheels && rollforge --version
RUN useradd --create-home rollforge && mkdir /work && chown rollforge /work
USER rollforge
WORKDIR /work
ENTRYPOINT ["rollforge"]
CMD ["--help"]
