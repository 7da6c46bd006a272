# docker build -t lockgate . && docker run -p 6380:6380 -e LOCKGATE_UPSTREAM=redis://host lockgate
#
# Clients come from outside of the container, so where neither that Redis nor lockgate (LOCKGATE_AUTH_PASSWORD) asks
# them for a password they are refused, unless LOCKGATE_PROTECTED_MODE is false.
#
# The image is distroless/cc: glibc, certificates, and no shell or package manager. Not scratch with
# musl: musl's allocator takes one lock for all threads, and every waiting client is allocated.
FROM rust:1-slim-bookworm AS build
WORKDIR /build
COPY . .
# What --version tells: docker build --build-arg COMMIT=$(git rev-parse HEAD)
ARG COMMIT=""
RUN --mount=type=cache,target=/usr/local/cargo/registry \
    --mount=type=cache,target=/build/target \
    LOCKGATE_BUILD_COMMIT=$COMMIT cargo build --release --locked --bin lockgate && cp target/release/lockgate /lockgate

FROM gcr.io/distroless/cc-debian12:nonroot
COPY --from=build /lockgate /usr/local/bin/lockgate
COPY LICENSE-MIT LICENSE-APACHE /usr/share/doc/lockgate/
# In a container the loopback would reach nobody; what may connect is decided by who publishes the port.
ENV LOCKGATE_LISTEN=0.0.0.0:6380
EXPOSE 6380
USER nonroot
ENTRYPOINT ["lockgate"]
