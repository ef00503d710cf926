// Package flowcontrol creates the API Priority and Fairness objects of MacRack.
package flowcontrol

import (
	"bufio"
	"bytes"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"time"

	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/kubernetes/scheme"
	flowcontrolclient "k8s.io/client-go/kubernetes/typed/flowcontrol/v1"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
	"sigs.k8s.io/yaml"
)

const (
	// fieldManager owns the fields of the objects. All replicas use the same.
	fieldManager = "macrack-apiserver"
	// retryInterval and interval are the times between two checks of the objects, after a failure
	// and otherwise.
	retryInterval = 5 * time.Second
	interval      = 5 * time.Minute
)

//go:embed objects.yaml
var manifest []byte

// An Object is a FlowSchema or a PriorityLevelConfiguration.
type Object struct {
	Kind, Name string
	// json is the applied configuration.
	json []byte
}

// Objects returns the objects of MacRack.
func Objects() ([]Object, error) {
	var objects []Object
	for reader := utilyaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(manifest))); ; {
		document, err := reader.Read()
		if errors.Is(err, io.EOF) {
			return objects, nil
		}
		if err != nil {
			return nil, err
		}
		object, err := parse(document)
		if err != nil {
			return nil, err
		}
		objects = append(objects, object)
	}
}

func parse(document []byte) (Object, error) {
	json, err := yaml.YAMLToJSON(document)
	if err != nil {
		return Object{}, err
	}
	obj, kind, err := scheme.Codecs.UniversalDeserializer().Decode(json, nil, nil)
	if err != nil {
		return Object{}, err
	}
	switch obj := obj.(type) {
	case *flowcontrolv1.PriorityLevelConfiguration:
		return Object{kind.Kind, obj.Name, json}, nil
	case *flowcontrolv1.FlowSchema:
		return Object{kind.Kind, obj.Name, json}, nil
	}
	return Object{}, fmt.Errorf("%s is not an object of flow control", kind)
}

// Apply creates or updates the object. It fails with a conflict if an administrator has changed a
// field that this release would change; that change stays.
func (o Object) Apply(ctx context.Context, client flowcontrolclient.FlowcontrolV1Interface) error {
	options := metav1.PatchOptions{FieldManager: fieldManager}
	var err error
	if o.Kind == "FlowSchema" {
		_, err = client.FlowSchemas().Patch(ctx, o.Name, types.ApplyPatchType, o.json, options)
	} else {
		_, err = client.PriorityLevelConfigurations().Patch(ctx, o.Name, types.ApplyPatchType, o.json, options)
	}
	return err
}

// Run applies objects until ctx is done, repeatedly in case they were deleted. Changes by
// administrators stay.
func Run(ctx context.Context, client flowcontrolclient.FlowcontrolV1Interface, clock clock.WithTicker, objects []Object) {
	for {
		wait := interval
		if !apply(ctx, client, objects) {
			wait = retryInterval
		}
		select {
		case <-ctx.Done():
			return
		case <-clock.After(wait):
		}
	}
}

// apply reports whether all objects are as in this release, or as an administrator changed them.
func apply(ctx context.Context, client flowcontrolclient.FlowcontrolV1Interface, objects []Object) bool {
	applied := true
	for _, o := range objects {
		logger := klog.FromContext(ctx).WithValues("kind", o.Kind, "name", o.Name)
		switch err := o.Apply(ctx, client); {
		case apierrors.IsConflict(err):
			logger.V(2).Info("Flow control object kept as an administrator changed it", "conflict", err)
		case err != nil && ctx.Err() == nil:
			logger.Error(err, "Failed to apply a flow control object; requests have their default priority")
			applied = false
		}
	}
	return applied
}
