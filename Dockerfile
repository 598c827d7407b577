# The broker as an image; docs/how-to/install.md says how to run it.
#     docker build -t penstock .

FROM python:3.13-slim AS build
WORKDIR /src
COPY . .
# Without pip in it, the environment is smaller; its byte code is compiled, so that a start is short.
# hadolint ignore=DL3013
RUN python -m venv --without-pip /opt/penstock \
    && pip --python /opt/penstock/bin/python install --no-cache-dir '.[redis]'

FROM python:3.13-slim
COPY --from=build /opt/penstock /opt/penstock
COPY --chmod=755 deploy/container-start /usr/local/bin/container-start
ENV PATH=/opt/penstock/bin:$PATH
# A fixed number, which owners of mounted files can have, and a cluster can check that it is not root.
RUN useradd --uid 10001 --user-group --no-create-home --home-dir /data penstock \
    && install -d -o 10001 -g 10001 -m 750 /data
USER 10001:10001
WORKDIR /data
VOLUME /data
EXPOSE 1883 8081
HEALTHCHECK --interval=30s --timeout=5s --start-period=60s CMD ["python", "-c", \
    "from urllib.request import urlopen; urlopen('http://127.0.0.1:8081/healthz', timeout=4)"]
ENTRYPOINT ["container-start"]
