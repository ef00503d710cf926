package race

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	imagev1alpha1 "macrack.io/macrack/pkg/apis/image/v1alpha1"
	instancev1alpha1 "macrack.io/macrack/pkg/apis/instance/v1alpha1"
	rackv1alpha1 "macrack.io/macrack/pkg/apis/rack/v1alpha1"

	"go.uber.org/zap"

	"macrack.io/macrack/pkg/apis/scalar"
	"macrack.io/macrack/test/cluster/process"
)

// start starts the etcd and the servers, and fills the catalogue.
func (r *race) start(ctx context.Context) error {
	addresses, err := process.FreeAddresses(2*r.Members + r.Servers)
	if err != nil {
		return err
	}
	clockFile := filepath.Join(r.Dir, "clock")
	if r.clock, err = openClock(clockFile, 0); err != nil {
		return err
	}
	var cluster, endpoints []string
	for n := range r.Members {
		cluster = append(cluster, fmt.Sprintf("etcd-%d=http://%s", n, addresses[2*n+1]))
		endpoints = append(endpoints, "http://"+addresses[2*n])
	}
	for n := range r.Members {
		name := fmt.Sprintf("etcd-%d", n)
		member, err := newChild(r.Dir, name, role{
			Listen: addresses[2*n], Member: name, Peer: addresses[2*n+1], Cluster: strings.Join(cluster, ","), Dir: filepath.Join(r.Dir, name),
		})
		if err != nil {
			return err
		}
		r.members = append(r.members, member)
	}
	for n := range r.Servers {
		server, err := newChild(r.Dir, fmt.Sprintf("server-%d", n), role{
			Listen: addresses[2*r.Members+n], Etcd: endpoints, Clock: clockFile, Skew: -time.Duration(n) * 2 * time.Second,
		})
		if err != nil {
			return err
		}
		r.servers = append(r.servers, server)
	}
	for _, p := range r.members {
		if err := p.Start(); err != nil {
			return err
		}
	}
	for _, p := range r.members {
		if err := p.WaitReady(ctx, p.healthy); err != nil {
			return err
		}
	}
	for _, p := range r.servers {
		if err := p.Start(); err != nil {
			return err
		}
	}
	for _, p := range r.servers {
		if err := p.WaitReady(ctx, p.ready); err != nil {
			return err
		}
	}
	return r.fill(ctx)
}

func (r *race) stop() {
	for _, p := range slices.Concat(r.servers, r.members) {
		p.Kill()
	}
	if r.clock != nil {
		_ = r.clock.file.Close()
	}
}

func newImage(name string) *imagev1alpha1.MacOSImage {
	return &imagev1alpha1.MacOSImage{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: imagev1alpha1.MacOSImageSpec{
			Contents: []imagev1alpha1.ImageContent{{Name: "macOS", Version: "26.1", Build: "25B78"}, {Name: "guest-agent", Version: "1.0"}},
			Source:   imagev1alpha1.ImageSource{Reference: "registry.example.com/macos:26.1", Digest: "sha256:" + strings.Repeat("26", 32)},
			DiskSize: scalar.MustParse("60Gi"),
		},
	}
}

// fill fills the catalogue.
func (r *race) fill(ctx context.Context) error {
	ctx = asAdmin(ctx)
	client, err := newClient(r.servers[0].role.Listen)
	if err != nil {
		return err
	}
	if _, err := client.RackV1alpha1().MacNodeClasses().Create(ctx, &rackv1alpha1.MacNodeClass{
		ObjectMeta: metav1.ObjectMeta{Name: "base"},
		Spec: rackv1alpha1.MacNodeClassSpec{
			Model: "Mac mini (2024)", ModelIdentifiers: []string{"Mac16,10"}, Chip: "Apple M4",
			Capacity:     rackv1alpha1.MachineResources{CPU: scalar.MustParse("64"), Memory: scalar.MustParse("512Gi"), Storage: scalar.MustParse("8Ti")},
			HostReserved: rackv1alpha1.MachineResources{CPU: scalar.MustParse("2"), Memory: scalar.MustParse("4Gi"), Storage: scalar.MustParse("64Gi")},
		},
	}, metav1.CreateOptions{}); err != nil {
		return err
	}
	if _, err := client.InstanceV1alpha1().InstanceClasses().Create(ctx, &instancev1alpha1.InstanceClass{
		ObjectMeta: metav1.ObjectMeta{Name: "small"},
		Spec: instancev1alpha1.InstanceClassSpec{Resources: instancev1alpha1.InstanceClassResources{
			CPU: scalar.MustParse("4"), Memory: scalar.MustParse("8Gi"), Storage: scalar.MustParse("64Gi"),
		}},
	}, metav1.CreateOptions{}); err != nil {
		return err
	}
	for _, name := range r.images {
		image, err := client.ImageV1alpha1().MacOSImages().Create(ctx, newImage(name), metav1.CreateOptions{})
		if err != nil {
			return err
		}
		image.Status.Phase, image.Status.Digest = imagev1alpha1.MacOSImageReady, image.Spec.Source.Digest
		if _, err := client.ImageV1alpha1().MacOSImages().UpdateStatus(ctx, image, metav1.UpdateOptions{}); err != nil {
			return err
		}
	}
	return nil
}

func (r *race) etcd(members ...*child) (*clientv3.Client, error) {
	var endpoints []string
	for _, p := range members {
		endpoints = append(endpoints, p.role.Listen)
	}
	return clientv3.New(clientv3.Config{Endpoints: endpoints, DialTimeout: 10 * time.Second, DialKeepAliveTime: 5 * time.Second, DialKeepAliveTimeout: 5 * time.Second, Logger: zap.NewNop()})
}

// healthy reports whether a member of etcd answers for the cluster.
func (p *child) healthy(ctx context.Context) error {
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{p.role.Listen}, Logger: zap.NewNop()})
	if err != nil {
		return err
	}
	defer client.Close()
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	_, err = client.Get(ctx, "health")
	return err
}

// ready reports whether a server serves.
func (p *child) ready(ctx context.Context) error {
	client, err := newClient(p.role.Listen)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(asAdmin(ctx), 2*time.Second)
	defer cancel()
	_, err = client.Discovery().RESTClient().Get().AbsPath("/readyz").Do(ctx).Raw()
	return err
}
