# docker build -t lockgate . && docker run -p 6380:6380 -e LOCKGATE_UPSTREAM=redis://host lockgate
#
# Clients reach lockgate from outside of the container. Protected mode refuses them unless that Redis or lockgate
# (LOCKGATE_AUTH_PASSWORD) requires a password, or LOCKGATE_PROTECTED_MODE is false.
#
# The image is distroless/cc: glibc, certificates, and no shell or package manager. Not scratch with
# musl: musl's allocator takes one lock for all threads, and every waiting client is allocated.
FROM rust:1-slim-bookworm AS build
WORKDIR /build
COPY . .
# The commit that --version prints: docker build --build-arg COMMIT=$(git rev-parse HEAD)
ARG COMMIT=""
RUN --mount=type=cache,target=/usr/local/cargo/registry \
    --mount=type=cache,target=/build/target \
    LOCKGATE_BUILD_COMMIT=$COMMIT cargo build --release --locked --bin lockgate && cp target/release/lockgate /lockgate

FROM gcr.io/distroless/cc-debian12:nonroot
COPY --from=build /lockgate /usr/local/bin/lockgate
COPY LICENSE-MIT LICENSE-APACHE /usr/share/doc/lockgate/
# Clients outside of the container cannot reach its loopback. Publishing the port decides which clients can connect.
ENV LOCKGATE_LISTEN=0.0.0.0:6380
EXPOSE 6380
USER nonroot
ENTRYPOINT ["lockgate"]
