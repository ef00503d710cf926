// Package etcd starts etcd inside a program, and connects to it.
package etcd

import (
	"crypto/tls"
	"fmt"
	"net/url"

	"go.etcd.io/etcd/client/pkg/v3/transport"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/zap"

	"macrack.io/macrack/test/cluster"
)

// TLS returns the TLS configuration of a client.
func TLS(access cluster.EtcdAccess) (*tls.Config, error) {
	return transport.TLSInfo{TrustedCAFile: access.CAFile, CertFile: access.CertFile, KeyFile: access.KeyFile}.ClientConfig()
}

// Connect returns a client, which logs nothing.
func Connect(access cluster.EtcdAccess) (c *clientv3.Client, err error) {
	config := clientv3.Config{Endpoints: access.Servers, Logger: zap.NewNop()}
	if access.CAFile != "" {
		if config.TLS, err = TLS(access); err != nil {
			return nil, err
		}
	}
	return clientv3.New(config)
}

// A Member is an etcd without TLS, alone or in a cluster. It does not sync to the disk: only
// processes die, not the machine.
type Member struct {
	Dir string
	// Name, Client and Peer are the name and the addresses (host:port) of the member. By default,
	// it has free ports.
	Name, Client, Peer string
	// Cluster has the members of a cluster as etcd's --initial-cluster does; empty: this member.
	Cluster string
	// Quota is the maximum size of the data in bytes; 0: that of etcd.
	Quota int64
}

// Start starts the member, and returns when it serves.
func (m Member) Start() (*embed.Etcd, error) {
	config := embed.NewConfig()
	config.Dir, config.UnsafeNoFsync, config.QuotaBackendBytes = m.Dir, true, m.Quota
	if m.Name != "" {
		config.Name = m.Name
	}
	client, peer := address(m.Client), address(m.Peer)
	config.ListenClientUrls, config.ListenPeerUrls = client, peer
	if m.Cluster != "" {
		config.AdvertiseClientUrls, config.AdvertisePeerUrls, config.InitialCluster = client, peer, m.Cluster
	}
	logger, err := zap.NewProduction(zap.IncreaseLevel(zap.WarnLevel))
	if err != nil {
		return nil, err
	}
	config.ZapLoggerBuilder = embed.NewZapLoggerBuilder(logger)
	server, err := embed.StartEtcd(config)
	if err != nil {
		return nil, err
	}
	select {
	case <-server.Server.ReadyNotify():
		return server, nil
	case err := <-server.Err():
		return nil, fmt.Errorf("etcd has ended: %w", err)
	}
}

func address(hostPort string) []url.URL {
	if hostPort == "" {
		hostPort = "127.0.0.1:0"
	}
	return []url.URL{{Scheme: "http", Host: hostPort}}
}
