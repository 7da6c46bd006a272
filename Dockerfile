# docker build -t lockgate . && docker run -p 6380:6380 -e LOCKGATE_UPSTREAM=redis://host lockgate
#
# Clients reach lockgate from outside of the container. Protected mode refuses them unless that Redis or lockgate
# (LOCKGATE_AUTH_PASSWORD) requires a password, or LOCKGATE_PROTECTED_MODE is false.
#
# The image is distroless/cc: glibc, certificates, and no shell or package manager.
#
# Each base has its digest, so the image does not change unless this file does. To take a newer base, change its tag
# and digest (docker buildx imagetools inspect TAG). tests/examples/run runs these steps without a container engine.
FROM rust:1.95.0-slim-bookworm@sha256:d7482085ff5b415f84dba5647ae71606650bdef00db7aeb69f4b3d170c3e4082 AS build
WORKDIR /build
COPY . .
# The commit that --version prints: docker build --build-arg COMMIT=$(git rev-parse HEAD)
ARG COMMIT=""
# The allocator is built with make. On ARM64 it is built for the largest pages that a kernel may have, 2^16 bytes: it
# refuses to start where pages are larger than it was built for.
RUN command -v make || { apt-get update && apt-get install -y --no-install-recommends make; }
RUN --mount=type=cache,target=/usr/local/cargo/registry \
    --mount=type=cache,target=/build/target \
    if [ "$(uname -m)" = aarch64 ]; then export JEMALLOC_SYS_WITH_LG_PAGE=16; fi; \
    LOCKGATE_BUILD_COMMIT=$COMMIT cargo build --release --locked --bin lockgate && cp target/release/lockgate /lockgate

FROM gcr.io/distroless/cc-debian12:nonroot@sha256:9dac0a79194e45a7da0158a9c6da57b217585af0786db3845d1f0ec1a0dd182f
ARG COMMIT=""
LABEL org.opencontainers.image.title="lockgate" \
      org.opencontainers.image.description="A proxy in front of Redis that queues waiters for locks" \
      org.opencontainers.image.version="0.1.0" \
      org.opencontainers.image.revision="$COMMIT" \
      org.opencontainers.image.licenses="MIT OR Apache-2.0" \
      org.opencontainers.image.documentation="https://docs.rs/lockgate"
COPY --from=build /lockgate /usr/local/bin/lockgate
COPY LICENSE-MIT LICENSE-APACHE /usr/share/doc/lockgate/
# Clients outside of the container cannot reach its loopback. Publishing the port decides which clients can connect.
ENV LOCKGATE_LISTEN=0.0.0.0:6380
EXPOSE 6380
# By number: Kubernetes cannot tell whether a name is root's (runAsNonRoot).
USER 65532:65532
# Longer than upstream.timeout (2s) and a second. Kubernetes ignores this and has probes.
HEALTHCHECK --interval=10s --timeout=5s --start-period=5s CMD ["lockgate", "health"]
ENTRYPOINT ["lockgate"]
