package io.github.rlockredis.spring.boot;

import org.springframework.aop.framework.autoproxy.AbstractBeanFactoryAwareAdvisingPostProcessor;
import org.springframework.aop.support.DefaultPointcutAdvisor;
import org.springframework.aop.support.annotation.AnnotationMatchingPointcut;
import org.springframework.beans.factory.BeanFactory;
import org.springframework.core.Ordered;

/** Wraps beans that have {@link DistributedLock} methods. */
final class DistributedLockPostProcessor extends AbstractBeanFactoryAwareAdvisingPostProcessor {
    private static final long serialVersionUID = 1;

    private final transient DistributedLockInterceptor interceptor;

    DistributedLockPostProcessor(DistributedLockInterceptor interceptor) {
        this.interceptor = interceptor;
        // The lock comes before the transaction, and after the thread of an @Async method has begun.
        setBeforeExistingAdvisors(true);
        setOrder(Ordered.LOWEST_PRECEDENCE - 1);
        setProxyTargetClass(true);
        this.advisor = new DefaultPointcutAdvisor(
                AnnotationMatchingPointcut.forMethodAnnotation(DistributedLock.class), interceptor);
    }

    @Override
    public void setBeanFactory(BeanFactory factory) {
        super.setBeanFactory(factory);
        interceptor.setBeanFactory(factory);
    }
}
