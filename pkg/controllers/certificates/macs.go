package certificates

import (
	"context"
	"fmt"
	"slices"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/klog/v2"

	rackv1alpha1 "macrack.io/macrack/pkg/apis/rack/v1alpha1"
	"macrack.io/macrack/pkg/controllers/controller"
	"macrack.io/macrack/pkg/controllers/shared"
	"macrack.io/macrack/pkg/rules"
)

// macsBinding is the ClusterRoleBinding that names the users of the Macs' agents. The admission
// policies need it to tell Macs from other Nodes, as their certificates look alike.
const macsBinding = "macrack-macs"

// NewMacs returns the controller that keeps the users of all Macs in the ClusterRoleBinding
// macrack-macs. It has one key. A user stays there when its MacNode is deleted, because its
// certificate stays valid.
func NewMacs(deps *shared.Dependencies) *controller.Controller {
	m := &macs{deps.Core}
	c := controller.New("macs", deps.Clock, func(ctx context.Context, _ string) (time.Time, error) {
		return time.Time{}, m.addUsers(ctx, deps.MacNodes.Informer().GetStore().ListKeys()...)
	})
	_, _ = deps.MacNodes.Informer().AddEventHandler(controller.Handlers(func(before, _ *rackv1alpha1.MacNode) {
		if before == nil {
			c.Enqueue(macsBinding)
		}
	}))
	return c
}

type macs struct{ core kubernetes.Interface }

// addUsers adds the users of Macs to the binding.
func (m *macs) addUsers(ctx context.Context, names ...string) error {
	bindings := m.core.RbacV1().ClusterRoleBindings()
	binding, err := bindings.Get(ctx, macsBinding, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return fmt.Errorf("ClusterRoleBinding %s, which the admission policies need, is missing; apply artifacts/deploy: %w", macsBinding, err)
	}
	if err != nil {
		return err
	}
	known := map[string]bool{}
	for _, subject := range binding.Subjects {
		known[subject.Name] = known[subject.Name] || subject.Kind == rbacv1.UserKind
	}
	slices.Sort(names)
	var added []string
	for _, name := range names {
		if user := rules.NodeUser(name); !known[user] {
			binding.Subjects = append(binding.Subjects, rbacv1.Subject{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: user})
			added = append(added, name)
		}
	}
	if len(added) == 0 {
		return nil
	}
	if _, err := bindings.Update(ctx, binding, shared.UpdateOptions); err != nil {
		return err
	}
	klog.FromContext(ctx).Info("Macs added to the ClusterRoleBinding", "nodes", added, "clusterRoleBinding", macsBinding)
	return nil
}
