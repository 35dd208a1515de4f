FROM python:3.12-slim@sha256:78387bc3881b8273120a12ebe6c1ab22b018ccc2c9adf565ae1ac9b536e184ea AS build
WORKDIR /src
COPY requirements/build.txt requirements/base.txt requirements/
RUN pip install --no-cache-dir --no-deps --require-hashes -r requirements/build.txt \
 && python -m venv /opt/nexus \
 && /opt/nexus/bin/pip install --no-cache-dir --no-deps --require-hashes -r requirements/base.txt
COPY pyproject.toml README.md LICENSE ./
COPY nexus nexus
RUN pip wheel --no-cache-dir --no-deps --no-build-isolation --wheel-dir dist . \
 && /opt/nexus/bin/pip install --no-cache-dir --no-deps dist/*.whl \
 && /opt/nexus/bin/pip check

FROM python:3.12-slim@sha256:78387bc3881b8273120a12ebe6c1ab22b018ccc2c9adf565ae1ac9b536e184ea
RUN useradd --system --create-home --uid 10001 nexus
COPY --from=build /opt/nexus /opt/nexus
ENV PATH=/opt/nexus/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    MALLOC_ARENA_MAX=2 \
    NEXUS_SYSTEM__HTTP_HOST=0.0.0.0 \
    NEXUS_SYSTEM__HTTP_PORT=8080
USER nexus
WORKDIR /home/nexus
COPY scripts/database_manager.py scripts/context_preview.py scripts/
COPY scripts/dbmanager scripts/dbmanager
EXPOSE 8080
# Healthy while the process answers at all. /readyz is no ground for a restart: rows that wait for MongoDB would be lost.
HEALTHCHECK --interval=10s --timeout=4s --retries=3 --start-period=20s \
  CMD ["python", "-c", "import os, urllib.request as web; web.urlopen('http://127.0.0.1:' + os.environ['NEXUS_SYSTEM__HTTP_PORT'] + '/livez', timeout=3)"]
CMD ["nexus", "serve"]
