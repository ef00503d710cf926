package certissuer

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/dynamic"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/util/cert"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
)

// Name is the name of the issuer: its field manager, and the label of its Secrets.
const Name = "macrack-certificates"

const managedBy = "app.kubernetes.io/managed-by"

// Issue selects the certificates that an Issuer makes.
type Issue string

const (
	// Serving is the certificate of macrack-apiserver.
	Serving Issue = "serving"
	// Etcd are the certificates of etcd and of its client, macrack-apiserver.
	Etcd Issue = "etcd"
)

// servingSecret has the certificate of macrack-apiserver.
const servingSecret = "macrack-apiserver-tls"

type leaf struct {
	secret string
	request
}

// family is an authority with its certificates.
type family struct {
	secret, name string
	leaves       []leaf
}

func families(namespace string) map[Issue]family {
	members := "macrack-etcd." + namespace + ".svc"
	server := "macrack-apiserver." + namespace
	return map[Issue]family{
		Serving: {"macrack-serving-ca", "macrack-serving", []leaf{
			{servingSecret, request{"macrack-apiserver", []string{server, server + ".svc"}, true}},
		}},
		Etcd: {"macrack-etcd-ca", "macrack-etcd", []leaf{
			{"macrack-etcd-tls", request{"macrack-etcd", []string{members, "*." + members, "localhost"}, true}},
			{"macrack-etcd-client-tls", request{"macrack-apiserver", nil, false}},
		}},
	}
}

// Issuer keeps the certificates valid, and the caBundle of the APIServices equal to the authorities
// of macrack-apiserver.
type Issuer struct {
	Secrets     corev1client.SecretInterface
	APIServices dynamic.ResourceInterface
	Namespace   string
	Issue       []Issue
	Clock       clock.Clock
	// Interval is the time between two checks. The issuer polls, because it may read the Secrets
	// by name only.
	Interval time.Duration
}

// Run checks the certificates until ctx is done.
func (i *Issuer) Run(ctx context.Context) error {
	const first = time.Second
	for retry := first; ; {
		wait := i.Interval
		if err := i.Reconcile(ctx); err != nil {
			if ctx.Err() == nil {
				klog.FromContext(ctx).Error(err, "Failed to check the certificates; retrying", "after", retry)
			}
			wait = min(retry, i.Interval)
			retry = min(2*retry, i.Interval)
		} else {
			retry = first
		}
		select {
		case <-ctx.Done():
			return nil
		case <-i.Clock.After(wait):
		}
	}
}

// Reconcile issues the certificates that are missing or due, and updates the APIServices.
func (i *Issuer) Reconcile(ctx context.Context) error {
	var errs []error
	for _, issue := range i.Issue {
		f, ok := families(i.Namespace)[issue]
		if !ok {
			return fmt.Errorf("unknown certificates %q; use %s or %s", issue, Serving, Etcd)
		}
		errs = append(errs, i.ensureFamily(ctx, f))
	}
	errs = append(errs, i.trust(ctx))
	return errors.Join(errs...)
}

func (i *Issuer) ensureFamily(ctx context.Context, f family) error {
	a, err := i.ensureAuthority(ctx, f)
	if err != nil {
		return err
	}
	trusted, err := cert.EncodeCertificates(a.trusted...)
	if err != nil {
		return err
	}
	var errs []error
	for _, l := range f.leaves {
		errs = append(errs, i.ensureLeaf(ctx, a, trusted, l))
	}
	return errors.Join(errs...)
}

func (i *Issuer) ensureAuthority(ctx context.Context, f family) (*authority, error) {
	var result *authority
	err := i.ensure(ctx, f.secret, corev1.SecretTypeOpaque, func(old map[string][]byte) (data map[string][]byte, err error) {
		now := i.Clock.Now()
		if old == nil {
			klog.FromContext(ctx).Info("Creating an authority", "secret", f.secret)
			result, err = newAuthority(f.name, now)
		} else {
			result, err = decodeAuthority(f.name, old)
		}
		if err != nil {
			return nil, fmt.Errorf("%w; restore the Secret, or delete it to make another authority", err)
		}
		if err := result.advance(now); err != nil {
			return nil, err
		}
		return result.encode()
	})
	return result, err
}

func (i *Issuer) ensureLeaf(ctx context.Context, a *authority, trusted []byte, l leaf) error {
	return i.ensure(ctx, l.secret, corev1.SecretTypeTLS, func(old map[string][]byte) (map[string][]byte, error) {
		now := i.Clock.Now()
		reason := "it is missing"
		if p, err := decodePair(old[certKey], old[keyKey]); err == nil {
			reason = a.due(p.cert, l.request, now)
		} else if old != nil {
			reason = err.Error()
		}
		data := map[string][]byte{certKey: old[certKey], keyKey: old[keyKey], caKey: trusted}
		if reason == "" {
			return data, nil
		}
		klog.FromContext(ctx).Info("Issuing a certificate", "secret", l.secret, "reason", reason)
		var err error
		data[certKey], data[keyKey], err = a.issue(l.request, now)
		return data, err
	})
}

// ensure creates a Secret, or updates it if its data changes. A concurrent write makes it fail.
func (i *Issuer) ensure(ctx context.Context, name string, secretType corev1.SecretType, desired func(old map[string][]byte) (map[string][]byte, error)) error {
	secret, err := i.Secrets.Get(ctx, name, metav1.GetOptions{})
	missing := apierrors.IsNotFound(err)
	if err != nil && !missing {
		return err
	}
	if missing {
		secret = &corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{managedBy: Name, "app.kubernetes.io/part-of": "macrack"}},
			Type:       secretType,
		}
	} else if secret.Labels[managedBy] != Name {
		return fmt.Errorf("Secret %s was not made by %s; delete it, or do not let %s issue it", name, Name, Name)
	}
	data, err := desired(secret.Data)
	if err != nil {
		return fmt.Errorf("Secret %s: %w", name, err)
	}
	if maps.EqualFunc(secret.Data, data, bytes.Equal) {
		return nil
	}
	secret = secret.DeepCopy()
	secret.Data = data
	if missing {
		_, err = i.Secrets.Create(ctx, secret, metav1.CreateOptions{FieldManager: Name})
	} else {
		_, err = i.Secrets.Update(ctx, secret, metav1.UpdateOptions{FieldManager: Name})
	}
	return err
}

// Certificates returns the issued certificates by name, for a check of the arguments.
func Certificates() []Issue {
	return slices.Sorted(maps.Keys(families("")))
}
