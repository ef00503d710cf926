package environment

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/utils/ptr"

	instancev1alpha1 "macrack.io/macrack/pkg/apis/instance/v1alpha1"
	"macrack.io/macrack/pkg/vm/contract"
)

// A Problem is the reason why an environment cannot be read. Its message has no values.
type Problem struct{ Reason, Message string }

// Error returns the message.
func (p *Problem) Error() string { return p.Message }

// resolver reads the environment of one instance. It keeps only the last object, and ends beyond
// the limit: a tenant can name more Secrets than the memory of the agent holds.
type resolver struct {
	client    typedcorev1.CoreV1Interface
	namespace string
	last      object
	all       []contract.EnvironmentVariable
	size      int
}

// object is a Secret or a ConfigMap. Its data is nil if it does not exist.
type object struct {
	kind, name string
	data       map[string][]byte
}

// resolve returns the environment of an instance. A problem has the type *Problem.
func resolve(ctx context.Context, client typedcorev1.CoreV1Interface, instance *instancev1alpha1.MacOSInstance) ([]contract.EnvironmentVariable, error) {
	r := &resolver{client: client, namespace: instance.Namespace}
	for i, source := range instance.Spec.EnvFrom {
		if err := r.source(ctx, source, fmt.Sprintf("spec.envFrom[%d]", i)); err != nil {
			return nil, err
		}
	}
	for i, v := range instance.Spec.Env {
		if err := r.variable(ctx, v, fmt.Sprintf("spec.env[%d]", i)); err != nil {
			return nil, err
		}
	}
	return r.all, nil
}

// kinds of objects.
const (
	secret    = "Secret"
	configMap = "ConfigMap"
)

func (r *resolver) source(ctx context.Context, source instancev1alpha1.EnvFromSource, field string) error {
	kind, ref := secret, source.SecretRef
	if ref == nil {
		kind, ref = configMap, source.ConfigMapRef
	}
	if ref == nil {
		return nil // the registry refuses it
	}
	found, err := r.read(ctx, kind, ref.Name, field)
	if err != nil {
		return err
	}
	if found.data == nil && !ptr.Deref(ref.Optional, false) {
		return r.missing(found, field, "")
	}
	for _, key := range slices.Sorted(maps.Keys(found.data)) {
		if err := r.add(source.Prefix+key, found.data[key], field); err != nil {
			return err
		}
	}
	return nil
}

func (r *resolver) variable(ctx context.Context, v instancev1alpha1.EnvVar, field string) error {
	if v.ValueFrom == nil {
		return r.add(v.Name, []byte(v.Value), field)
	}
	kind, ref := secret, v.ValueFrom.SecretKeyRef
	if ref == nil {
		kind, ref = configMap, v.ValueFrom.ConfigMapKeyRef
	}
	if ref == nil {
		return nil // the registry refuses it
	}
	found, err := r.read(ctx, kind, ref.Name, field)
	if err != nil {
		return err
	}
	value, has := found.data[ref.Key]
	switch {
	case has:
		return r.add(v.Name, value, field)
	case ptr.Deref(ref.Optional, false):
		return nil
	default:
		return r.missing(found, field, ref.Key)
	}
}

// read reads an object, whose data is nil if it does not exist.
func (r *resolver) read(ctx context.Context, kind, name, field string) (object, error) {
	if r.last.kind == kind && r.last.name == name {
		return r.last, nil
	}
	found := object{kind: kind, name: name}
	var err error
	if kind == secret {
		s, getErr := r.client.Secrets(r.namespace).Get(ctx, name, metav1.GetOptions{})
		if err = getErr; err == nil {
			found.data = map[string][]byte{}
			maps.Copy(found.data, s.Data)
		}
	} else {
		c, getErr := r.client.ConfigMaps(r.namespace).Get(ctx, name, metav1.GetOptions{})
		if err = getErr; err == nil {
			found.data = map[string][]byte{}
			for key, value := range c.Data {
				found.data[key] = []byte(value)
			}
		}
	}
	if err != nil && !apierrors.IsNotFound(err) {
		return object{}, &Problem{instancev1alpha1.ReasonEnvironmentUnreadable, fmt.Sprintf("failed to read %s %q (%s): %v", kind, name, field, err)}
	}
	r.last = found
	return found, nil
}

func (r *resolver) missing(o object, field, key string) error {
	reason := instancev1alpha1.ReasonSecretNotFound
	if o.kind == configMap {
		reason = instancev1alpha1.ReasonConfigMapNotFound
	}
	if o.data != nil {
		return &Problem{reason, fmt.Sprintf("%s %q has no key %q (%s); add it, or set optional", o.kind, o.name, key, field)}
	}
	return &Problem{reason, fmt.Sprintf("%s %q does not exist in namespace %q (%s); create it, or set optional", o.kind, o.name, r.namespace, field)}
}

// add appends a variable. A later variable overrides an earlier one with the same name; both count.
func (r *resolver) add(name string, value []byte, field string) error {
	v := contract.EnvironmentVariable{Name: name, Value: value}
	if bytes.IndexByte(value, 0) >= 0 {
		return &Problem{instancev1alpha1.ReasonEnvironmentInvalid, fmt.Sprintf("the value of %q (%s) contains a zero byte; encode it, for example in base64", name, field)}
	}
	if r.size += v.Size(); r.size > contract.MaxEnvironment {
		return &Problem{instancev1alpha1.ReasonEnvironmentInvalid, fmt.Sprintf("the environment has more than %d KiB up to %q (%s), which is the limit; use smaller values, or copy files with kubectl cp", contract.MaxEnvironment>>10, name, field)}
	}
	r.all = append(r.all, v)
	return nil
}
