//! A network between the store and Redis that loses packets for a while, and delivers them at last.

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::{oneshot, watch},
    task::JoinHandle,
};

use crate::redis::Server;

pub(crate) struct Network {
    port: u16,
    losing: watch::Sender<bool>,
    deliver: oneshot::Sender<()>,
    first: JoinHandle<Late>,
}

/// The outcome of bytes that the network delivered late.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Late {
    pub(crate) bytes: usize,
    pub(crate) answered: bool,
}

impl Network {
    /// The first connection is the one that suffers; the others are well.
    pub(crate) async fn before(server: &Server) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (port, to) = (listener.local_addr().unwrap().port(), server.port());
        let (losing, is_losing) = watch::channel(false);
        let (deliver, delivers) = oneshot::channel();
        let first = tokio::spawn(async move {
            let (mut client, mut redis) = connect(&listener, to).await;
            tokio::spawn(async move {
                loop {
                    let (mut client, mut redis) = connect(&listener, to).await;
                    tokio::spawn(async move {
                        tokio::io::copy_bidirectional(&mut client, &mut redis).await
                    });
                }
            });
            let late = carry(&mut client, &mut redis, &is_losing).await;
            delivers.await.unwrap();
            let _ = redis.write_all(&late).await;
            let answered = matches!(redis.read(&mut [0; 1024]).await, Ok(1..));
            Late {
                bytes: late.len(),
                answered,
            }
        });
        Self {
            port,
            losing,
            deliver,
            first,
        }
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// From now on nothing arrives at Redis.
    pub(crate) fn lose(&self) {
        self.losing.send_replace(true);
    }

    /// Delivers what was held back, of a client that is gone.
    pub(crate) async fn deliver(self) -> Late {
        self.deliver.send(()).unwrap();
        self.first.await.unwrap()
    }
}

/// A port at which the server is as one before Redis 6 is: there are no users, so `AUTH` takes no name.
pub(crate) async fn without_users(server: &Server) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (port, to) = (listener.local_addr().unwrap().port(), server.port());
    tokio::spawn(async move {
        loop {
            let (client, redis) = connect(&listener, to).await;
            tokio::spawn(knows_no_users(client, redis));
        }
    });
    port
}

/// A client waits for the reply to its `AUTH`, so bytes that begin with one are nothing else.
async fn knows_no_users(mut client: TcpStream, mut redis: TcpStream) -> std::io::Result<()> {
    let (mut said, mut replied) = ([0; 4096], [0; 4096]);
    loop {
        tokio::select! {
            count = client.read(&mut said) => match &said[..count?] {
                [] => return Ok(()),
                said if said.starts_with(b"*3\r\n$4\r\nAUTH\r\n") => {
                    let error = b"-ERR wrong number of arguments for 'auth' command\r\n";
                    client.write_all(error).await?;
                }
                said => redis.write_all(said).await?,
            },
            count = redis.read(&mut replied) => match &replied[..count?] {
                [] => return Ok(()),
                replied => client.write_all(replied).await?,
            },
        }
    }
}

async fn connect(listener: &TcpListener, to: u16) -> (TcpStream, TcpStream) {
    let (client, _) = listener.accept().await.unwrap();
    (client, TcpStream::connect(("127.0.0.1", to)).await.unwrap())
}

/// Carries bytes until the client is gone; returns what was held back.
async fn carry(
    client: &mut TcpStream,
    redis: &mut TcpStream,
    losing: &watch::Receiver<bool>,
) -> Vec<u8> {
    let mut late = Vec::new();
    let (mut up, mut down) = ([0; 4096], [0; 4096]);
    loop {
        tokio::select! {
            read = client.read(&mut up) => match read {
                Ok(bytes @ 1..) if *losing.borrow() => late.extend_from_slice(&up[..bytes]),
                Ok(bytes @ 1..) => redis.write_all(&up[..bytes]).await.unwrap(),
                Ok(0) | Err(_) => return late,
            },
            read = redis.read(&mut down) => {
                let bytes = read.unwrap();
                let _ = client.write_all(&down[..bytes]).await;
            }
        }
    }
}
