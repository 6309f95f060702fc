//! A plain loop of `quinn`: each end in a thread with a runtime of its own.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use quinn::crypto::rustls::{QuicClientConfig, QuicServerConfig};
use quinn::rustls::pki_types::pem::PemObject;
use quinn::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use quinn::rustls::{self, RootCertStore};
use quinn::{ClientConfig, Endpoint, MtuDiscoveryConfig, ServerConfig, TransportConfig};
use tokio::runtime::{Builder, Runtime};
use towpath_quic::identity::PemIdentity;

use super::{CHUNK_BYTES, Failure, MAX_DATAGRAM, Shared, WINDOW_BYTES, any_port};

fn create_runtime() -> Result<Runtime, Failure> {
    Ok(Builder::new_current_thread().enable_all().build()?)
}

fn transport_config() -> Arc<TransportConfig> {
    let mut transport = TransportConfig::default();
    let mut discovery = MtuDiscoveryConfig::default();
    discovery.upper_bound(MAX_DATAGRAM);
    transport
        .mtu_discovery_config(Some(discovery))
        .stream_receive_window(WINDOW_BYTES.into())
        .receive_window(WINDOW_BYTES.into())
        .send_window(4 * u64::from(WINDOW_BYTES));
    Arc::new(transport)
}

fn configs() -> Result<(ServerConfig, ClientConfig), Failure> {
    let pem = PemIdentity::make(&["localhost".to_owned()])?;
    let certificate = CertificateDer::from_pem_slice(pem.certificate.as_bytes())?;
    let key = PrivateKeyDer::from_pem_slice(pem.key.as_bytes())?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let versions = [&rustls::version::TLS13];
    let tls = rustls::ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_protocol_versions(&versions)?
        .with_no_client_auth()
        .with_single_cert(vec![certificate.clone()], key)?;
    let mut server = ServerConfig::with_crypto(Arc::new(QuicServerConfig::try_from(tls)?));
    server.transport_config(transport_config());
    let mut roots = RootCertStore::empty();
    roots.add(certificate)?;
    let tls = rustls::ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&versions)?
        .with_root_certificates(roots)
        .with_no_client_auth();
    let mut client = ClientConfig::new(Arc::new(QuicClientConfig::try_from(tls)?));
    client.transport_config(transport_config());
    Ok((server, client))
}

/// Writes one stream until the peer stops it.
async fn serve(endpoint: Endpoint) -> Result<(), Failure> {
    let connection = endpoint.accept().await.ok_or("closed")?.await?;
    let (mut send, _receive) = connection.accept_bi().await?;
    let data = bytes::Bytes::from(vec![7; CHUNK_BYTES]);
    while send.write_chunk(data.clone()).await.is_ok() {}
    Ok(())
}

pub(super) fn run(shared: &Arc<Shared>) -> Result<(), Failure> {
    let (server, client) = configs()?;
    let (address_sender, addresses) = std::sync::mpsc::channel();
    let server_thread = thread::spawn(move || -> Result<(), Failure> {
        create_runtime()?.block_on(async {
            let endpoint = Endpoint::server(server, any_port())?;
            address_sender.send(endpoint.local_addr()?)?;
            serve(endpoint).await
        })
    });
    let remote = addresses.recv_timeout(Duration::from_secs(10))?;
    let result = create_runtime()?.block_on(async {
        let endpoint = Endpoint::client(any_port())?;
        let connection = endpoint.connect_with(client, remote, "localhost")?.await?;
        let (mut send, mut receive) = connection.open_bi().await?;
        send.finish()?;
        while !shared.is_over() {
            let chunk =
                receive.read_chunk(CHUNK_BYTES, true).await?.ok_or("the stream has ended")?;
            shared.add_bytes(chunk.bytes.len());
        }
        connection.close(0_u32.into(), b"");
        endpoint.wait_idle().await;
        Ok::<_, Failure>(())
    });
    result?;
    server_thread.join().map_err(|_| "the server panicked")?
}
