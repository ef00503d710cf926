// Package certificatemetrics exposes the validity of the certificates that a process uses. They are
// read at each scrape, so a rotated certificate shows at once.
package certificatemetrics

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"maps"
	"os"
	"slices"
	"time"

	"k8s.io/component-base/metrics"
	"k8s.io/klog/v2"
)

var (
	notBefore = metrics.NewDesc("macrack_certificate_not_before_timestamp_seconds",
		"Start of the validity of a certificate that the process uses, by its purpose.", []string{"certificate"}, nil, metrics.ALPHA, "")
	notAfter = metrics.NewDesc("macrack_certificate_not_after_timestamp_seconds",
		"End of the validity of a certificate that the process uses, by its purpose.", []string{"certificate"}, nil, metrics.ALPHA, "")
)

// A Source returns the current certificate.
type Source func() (*x509.Certificate, error)

// Collector has the metrics of certificates, by their purpose.
type Collector struct {
	metrics.BaseStableCollector
	sources map[string]Source
}

var _ metrics.StableCollector = &Collector{}

// New returns the metrics of certificates, by their purpose.
func New(sources map[string]Source) *Collector { return &Collector{sources: sources} }

// DescribeWithStability sends the descriptors of the metrics.
func (c *Collector) DescribeWithStability(ch chan<- *metrics.Desc) {
	ch <- notBefore
	ch <- notAfter
}

// CollectWithStability sends the validity of each certificate that can be read.
func (c *Collector) CollectWithStability(ch chan<- metrics.Metric) {
	for _, name := range slices.Sorted(maps.Keys(c.sources)) {
		certificate, err := c.sources[name]()
		if err != nil {
			klog.Background().V(2).Info("Failed to read certificate for metrics", "certificate", name, "err", err)
			continue
		}
		ch <- metrics.NewLazyConstMetric(notBefore, metrics.GaugeValue, seconds(certificate.NotBefore), name)
		ch <- metrics.NewLazyConstMetric(notAfter, metrics.GaugeValue, seconds(certificate.NotAfter), name)
	}
}

func seconds(t time.Time) float64 { return float64(t.Unix()) }

// PEM returns the first certificate in the result of read.
func PEM(read func() ([]byte, error)) Source {
	return func() (*x509.Certificate, error) {
		data, err := read()
		if err != nil {
			return nil, err
		}
		for {
			var block *pem.Block
			if block, data = pem.Decode(data); block == nil {
				return nil, errors.New("no certificate in PEM format")
			}
			if block.Type == "CERTIFICATE" {
				return x509.ParseCertificate(block.Bytes)
			}
		}
	}
}

// File returns the first certificate in a file in PEM format.
func File(path string) Source {
	return PEM(func() ([]byte, error) { return os.ReadFile(path) })
}

// TLS returns the leaf of the result of get.
func TLS(get func() (*tls.Certificate, error)) Source {
	return func() (*x509.Certificate, error) {
		certificate, err := get()
		switch {
		case err != nil:
			return nil, err
		case certificate.Leaf != nil:
			return certificate.Leaf, nil
		case len(certificate.Certificate) == 0:
			return nil, errors.New("no certificate")
		}
		return x509.ParseCertificate(certificate.Certificate[0])
	}
}
