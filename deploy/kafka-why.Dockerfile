# The explainer alone: Python, the pinned packages, no Java, no Spark, no build tools.
FROM python:3.11.13-slim-bookworm AS base
ENV PATH=/opt/kafka-why/bin:$PATH

FROM base AS build
RUN python -m venv /opt/kafka-why
COPY requirements-why.lock /src/
RUN pip install --no-cache-dir --require-hashes --only-binary :all: --requirement /src/requirements-why.lock
COPY LICENSE /src/
COPY kafka_why /src/kafka_why
RUN pip install --no-cache-dir --no-deps --no-build-isolation /src/kafka_why \
    && pip uninstall --yes setuptools pip

FROM base
COPY --from=build /opt/kafka-why /opt/kafka-why
RUN useradd --create-home why
USER why
WORKDIR /home/why
ENTRYPOINT ["kafka-why"]
